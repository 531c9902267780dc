"""What a run needs before it runs: memory of each phase, operations, and time.

Memory is counted from the code that trains, run on tensors without values (`memory`); what is
assumed of devices and text stands in assumptions.yaml and can be given on the command line.
"""
