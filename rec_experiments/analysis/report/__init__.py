"""One HTML page of verdicts, runs and figures, and the figures as a report in W&B.

page          the page, from the template page.html
wandb_report  the report in W&B
"""
