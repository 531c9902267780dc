"""The state of runs in a terminal, with alarms before a collapse. Reads run folders only.

views   the state of a run, from its folder
screen  the states as text
live    shows them again and again
"""
