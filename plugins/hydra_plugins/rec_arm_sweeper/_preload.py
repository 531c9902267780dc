"""Imported once, before the processes of local jobs are forked: most of a short job's start is
importing."""

from importlib import import_module

for module in ("cli.train", "runs.run", "samplers.decoding"):
    import_module(f"rec_experiments.{module}")
