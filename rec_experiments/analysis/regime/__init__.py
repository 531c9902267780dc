"""The regime of a run: how far the policy moves between generating and using a sample, compared
with published runs.

quantities  numbers of one run
arms        the runs over which a row of a table is a mean
ranges      published values, and where an arm lies beside them
sections    the numbers of arms, quantity by quantity
tables      the sections as text and as plain values
alarms      signs that a run may be about to collapse
"""
