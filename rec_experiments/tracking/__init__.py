"""Trackers that receive the metrics of a run beside metrics.jsonl."""
