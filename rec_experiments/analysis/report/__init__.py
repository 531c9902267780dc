"""One HTML page of claims, runs and figures, and the figures as a report in W&B.

contents       what the page shows, read from run folders
curves         the numbers that its script draws
page, html     the page
wandb_report   the report in W&B
"""
