"""Finished runs as numbers, for claims, figures and reports.

runs            a run and its rows, the runs of a figure
collect         which run folders a figure is made of
statistics      from the rows of one run to one number
learning_curve  a curve fitted to a run: its height, midpoint and steepness
staleness       final accuracy against the age of the data
tuning          the learning rate of each method, from runs on seeds of their own
over_seeds      from the numbers of several runs to a mean and its interval
tables          results for people (text) and for programs (plain values)
"""
