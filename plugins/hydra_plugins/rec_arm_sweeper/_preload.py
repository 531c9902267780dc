"""Imported once, before the processes of local jobs are forked: most of a short job's start is
importing. Matplotlib is for the picture at the end of a run."""

from rec_experiments.garbage import none_collected

with none_collected():
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

    import rec_experiments.cli
    import rec_experiments.run
    import rec_experiments.samplers.decoding  # noqa: F401
