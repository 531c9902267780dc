"""Run folders as numbers, for claims, figures and reports.

table            the table of runs and the table of their steps
figure           the two tables of one figure
measures         statistics of one run
seeds            their mean and interval over seeds
settings         the values of an experiment from its overrides, without Hydra
content          one run, from its folder or an archive

Being replaced by these:
runs             one run: its state, rows and release
begun            how many cells of a figure have runs
figure_data      the runs of a figure
archive          many runs in one compressed file
frames           runs as a pandas data frame
statistics       one number of a run, from its rows
aggregate        mean and interval over seeds
summary          the statistics of a figure
cells            the runs of a map as a table
stability        the rate and age at which a method fails
edge_table       these rates as a table
formatting       tables as text and Markdown; JSON
"""
