"""Hydra plugins: a sweeper over arms × grid, and launchers for its jobs (rec_experiments.sweeps).

Hydra finds plugins only in the namespace hydra_plugins. It imports their modules twice, except
those whose names start with an underscore.
"""
