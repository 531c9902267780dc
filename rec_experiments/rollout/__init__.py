"""Drawing batches: schedule, order of the problems, workers, and the feed of the trainer."""
