"""Imported once, before the processes of local jobs are forked: most of a short job's start is
importing."""

from importlib import import_module

from rec_experiments.garbage import none_collected

with none_collected():
    for module in ("cli", "run", "samplers.decoding"):
        import_module(f"rec_experiments.{module}")
