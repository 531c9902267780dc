"""`python -m rec_experiments`: a run, or the view of runs if the first word is `watch`."""

import sys

if sys.argv[1:2] == ["watch"]:
    from rec_experiments import command
    from rec_experiments.watch.__main__ import main as watch

    with command.told_once():
        watch(sys.argv[2:])
else:
    from rec_experiments.cli import main

    main()
