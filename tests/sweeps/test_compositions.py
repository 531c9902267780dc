"""Compositions are kept in a cache file, and equal what Hydra composes.

1. A job is what Hydra composes from its overrides: all values, and its folder.
2. A later process reads them from the cache file, without Hydra; figures share compositions.
3. What depends on more than overrides, files and code is not kept.
"""

import json
from importlib import import_module
from pathlib import Path

import pytest
from conftest import chosen as composed_by_hydra
from omegaconf import OmegaConf

from rec_experiments import sweeps
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import run_path
from rec_experiments.errors import UserError
from rec_experiments.sweeps import compositions

jobs_module = import_module("rec_experiments.sweeps.jobs")  # `sweeps.jobs` is the function

FEW = ["sync=offline", "seed=0,1"]
BENCHMARK = [
    "sync=interval20", "seed=0", "optimizer.learning_rate=3e-5",
    "hydra.sweeper.only=[DAPO,REC-Ring-*]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def new_process(tmp_path, monkeypatch):
    """Forgets what this process has read; the cache folder belongs to the test."""
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "cache"))
    compositions._read.cache_clear()
    yield compositions._read.cache_clear
    compositions._read.cache_clear()


@pytest.fixture
def composed(monkeypatch):
    """The overrides of each composition by Hydra."""
    found = []
    compose = jobs_module.compose

    def recorded(config_name, overrides, **options):
        found.append(overrides)
        return compose(config_name, overrides, **options)

    monkeypatch.setattr(jobs_module, "compose", recorded)
    return found


def all_jobs(name, overrides):
    return sweeps.jobs(sweeps.load_figure(name, overrides), overrides)


def values_by_hydra(*overrides):
    found = composed_by_hydra(*overrides)
    return schema.build(found, Experiment).config()


def covering(jobs):
    """Some of the jobs, which together have every override."""
    seen = set()
    for job in jobs:
        if not seen.issuperset(job.overrides):
            seen.update(job.overrides)
            yield job


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("fig4", []),
        ("presets", BENCHMARK),
        pytest.param("fig10", ["scale=paper"], marks=pytest.mark.long),
        pytest.param("paper2_fig2", ["scale=mini_chain", "seed=0"], marks=pytest.mark.long),
    ],
)
def test_jobs_equal_hydras_compositions(name, chosen, new_process, composed):
    jobs = all_jobs(name, chosen)
    assert jobs
    for job in covering(jobs):
        assert json.dumps(job.config) == json.dumps(values_by_hydra(*job.overrides))  # in order
        assert job.path == run_path(values_by_hydra(*job.overrides))
    new_process()
    composed.clear()
    assert all_jobs(name, chosen) == jobs
    assert not composed


@pytest.mark.parametrize(
    "values",
    [
        ["optimizer.learning_rate=1e-4", "seed=3"],
        ["clip.low=null", "clip.high=2.0", "dataset.modulus=9"],
        ["run_dir='a b'", "output_dir=${hydra:runtime.cwd}"],
        ["model.warm_start={steps: 3}"],
        ["++steps=7"],
        ["optimizer.learning_rate=5e-4", "optimizer={learning_rate: 1e-3}"],
        ["~updates"],
        ["+more=1"],
    ],
)
def test_values_are_set_as_hydra_sets_them(values):
    lines = ["algo=rec_oneside_nois", "sync=offline", *values]
    with composing():
        fast = sweeps.by_choices(lambda some: jobs_module.compose("config", some))(lines)
        assert OmegaConf.to_container(fast) == OmegaConf.to_container(
            jobs_module.compose("config", lines)
        )


@pytest.mark.parametrize("line", ["stepz=3", "clip.lower=3", "optimizer=3", "steps=[1"])
def test_a_wrong_value_gets_hydras_answer(line):
    answers = []
    for compose in (jobs_module.compose, by_choices):
        with pytest.raises(UserError) as caught, composing():
            compose("config", ["algo=grpo", line])
        answers.append(str(caught.value))
    assert answers[0] == answers[1]


def by_choices(name, lines):
    return sweeps.by_choices(lambda some: jobs_module.compose(name, some))(lines)


def test_points_that_differ_in_values_share_a_composition(composed):
    rates = ",".join(f"{n}e-5" for n in range(1, 9))
    jobs = all_jobs("fig5", [*FEW, f"optimizer.learning_rate={rates}"])
    assert len({job.path for job in jobs}) == len(jobs) == 8 * 2 * 4
    assert len([lines for lines in composed if "sync=offline" in lines]) == 4  # arms


def test_figures_share_compositions(composed):
    for name in ("fig3", "fig9"):
        all_jobs(name, FEW)
    arms = [lines for lines in composed if "sync=offline" in lines]
    assert len(arms) == 7  # of five arms each: both have REINFORCE and GRPO, two differ in values
    assert len(composed) == 7 + 2  # and the figures


def test_digest_of_files_and_code(tmp_path, monkeypatch):
    roots = [tmp_path / "package", tmp_path / "conf"]
    for root, name in zip(roots, ("PACKAGE", "CONF"), strict=True):
        root.mkdir()
        monkeypatch.setattr(schema, name, root)
    digests = []

    def changed() -> bool:
        digests.append(compositions.digest.__wrapped__())
        return digests[-1] not in digests[:-1]

    assert changed()
    for root, file in zip(roots, ("a.py", "b.yaml"), strict=True):
        (root / file).write_text("x: 1")
        assert changed()
        (root / file).write_text("x: 2")
        assert changed()
        (root / file).rename(root / f"moved_{file}")
        assert changed()
        (root / "notes.txt").write_text("not read")
        assert not changed()


def test_a_value_from_the_environment_is_not_kept(monkeypatch, new_process):
    overrides = [*FEW, "output_dir=${oc.env:PLACE}"]
    for place in ("one", "other"):
        monkeypatch.setenv("PLACE", place)
        new_process()
        assert {job.path.parent for job in all_jobs("fig5", overrides)} == {Path(place)}


def test_a_value_may_refer_to_the_seed():
    found = all_jobs("fig5", [*FEW, "run_dir=run-${seed}", "hydra.sweeper.only=[RED-Drop]"])
    assert [str(job.path) for job in found] == ["run-0", "run-1"]
    assert [job.config["run_dir"] for job in found] == ["run-0", "run-1"]


@pytest.mark.parametrize("seed", [-1, 1 << 63])
@pytest.mark.parametrize("other", ["steps=3", "run_dir=run-${seed}"])
def test_every_seed_is_checked(seed, other):
    with pytest.raises(UserError, match=f"seed={seed}: must be"):
        all_jobs("fig5", ["sync=on_policy", f"seed=0,{seed}", other])


@pytest.mark.parametrize("damaged", [False, True])
def test_an_unusable_cache_changes_nothing(tmp_path, monkeypatch, new_process, damaged):
    expected = all_jobs("fig5", FEW)
    if damaged:
        [file] = (tmp_path / "cache").glob("compositions_*.json")
        file.write_text("{")
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "file"))  # no folder
    new_process()
    assert all_jobs("fig5", FEW) == expected
