"""Rollouts: schedule, order of problems, workers, replay, and the trainer's batches."""
