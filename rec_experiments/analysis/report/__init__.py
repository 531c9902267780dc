"""One HTML page of figures, claims and runs, and the same figures as a report in W&B."""
