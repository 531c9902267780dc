"""A terminal's view of runs: where they stand, and whether a collapse may be coming. Reads run
folders, nothing else.

views   from a run folder to what is shown of it
screen  the same as text
"""
