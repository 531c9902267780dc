"""Run folders as numbers, for claims, figures and reports.

runs            one run: its state, rows and release
figure_data     the runs of a figure
statistics      one number of a run, from its rows
learning_curve  a curve fitted to a run
aggregate       mean and interval over seeds
summary         the statistics of a figure
staleness       final accuracy against the age of the data
frames          runs as a pandas data frame
formatting      tables as text, Markdown and terminal output; JSON
"""
