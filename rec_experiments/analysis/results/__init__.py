"""Run folders as numbers, for claims, figures and reports.

table            the table of runs and the table of their steps
figure           the two tables of one figure
measures         statistics of one run
seeds            their mean and interval over seeds
summary          the statistics of a figure
cells            the finished runs of a map
stability        the rate and age at which a method fails
edge_table       these rates as a table
archive          many runs in one compressed file
content          one run, from its folder or an archive
settings         the values of an experiment from its overrides, without Hydra
formatting       tables as text and Markdown; JSON
"""
