"""Somebody who wants to follow one update reads 15 files of the package, not more."""

import sys
from pathlib import Path

from conftest import experiment

import rec_experiments
from rec_experiments.runs.prepare import prepare

PACKAGE = str(Path(rec_experiments.__file__).parent)
MOST = 15


def test_files_of_one_update():
    files = set()

    def note(frame, event, argument):
        if frame.f_code.co_filename.startswith(PACKAGE):
            files.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    trainer = prepare(experiment("dataset=arithmetic", "model.warm_start.steps=0"))
    trainer.rollouts.update_weights(0, 0, trainer.model)
    index = trainer.updates.index_of(0)
    batch = trainer.begin_batch(trainer.rollouts.get_batch(0), index)
    sys.setprofile(note)
    try:
        trainer.update(batch, index)
    finally:
        sys.setprofile(None)
    assert len(files) <= MOST, sorted(files)
    assert "/training/trainer.py" in files
    assert "/algo/loss.py" in files
