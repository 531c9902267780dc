"""Hydra plugins: a sweeper over arms × grid, and launchers for its jobs.

They live here because Hydra takes plugins from the namespace hydra_plugins only. What the jobs of a
sweep are is said by rec_experiments.sweeps. Hydra loads modules once more to look for plugins, and
their classes with them, but not those whose names begin with an underscore.
"""
