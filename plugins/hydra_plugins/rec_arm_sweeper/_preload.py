"""Imported once, before the processes of local jobs are forked: most of a short job's start is
importing."""

from rec_experiments.garbage import none_collected

with none_collected():
    import rec_experiments.cli
    import rec_experiments.run
    import rec_experiments.samplers.decoding  # noqa: F401
