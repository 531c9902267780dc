"""Run folders as numbers, for claims, figures and reports.

table        the table of runs and the table of their steps
archive      many runs in one compressed file
figure       the two tables of one figure, and its statistics
statistics   of one run, and their mean and interval over seeds
stability    gains of the runs of a map; the rate and age at which a method fails
formatting   tables as text and Markdown; JSON
"""
