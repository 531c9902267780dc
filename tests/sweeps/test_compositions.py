"""Jobs are composed once and kept, and are what each of them would be on its own.

1. A job is what Hydra composes from its overrides: all values, and its folder. Every arm, schedule
   and seed of every sweep is in one of those that are compared.
2. A later process has them from the cache folder, without Hydra; figures share what they share.
3. What does not follow from overrides, files and code alone is not kept.
"""

import json
from importlib import import_module
from pathlib import Path

import pytest
from conftest import resolve

from rec_experiments import sweeps
from rec_experiments.config import schema
from rec_experiments.config.identity import run_path
from rec_experiments.errors import UserError
from rec_experiments.sweeps import compositions

jobs_module = import_module("rec_experiments.sweeps.jobs")  # `sweeps.jobs` is the function

OTHER_SCALES = ["mini_chain", "small", "paper"]
FEW = ["sync=offline", "seed=0,1"]
BENCHMARK = ["sync=interval20", "seed=0", "hydra.sweeper.only=[DAPO,REC-Ring-*]"]


@pytest.fixture(autouse=True)
def forget(tmp_path, monkeypatch):
    """Makes the next call that of a new process; the cache folder is this test's own."""
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "cache"))

    def forget():
        for cached in (compositions._values, compositions.digest_of_code, jobs_module._composed):
            cached.cache_clear()

    forget()
    yield forget
    forget()


@pytest.fixture
def asked(monkeypatch):
    """The overrides of each composition that Hydra makes."""
    found = []
    compose = jobs_module.compose

    def noted(config_name, overrides, **options):
        found.append(overrides)
        return compose(config_name, overrides, **options)

    monkeypatch.setattr(jobs_module, "compose", noted)
    return found


def all_jobs(name, overrides):
    return sweeps.jobs(sweeps.load_figure(name, overrides), overrides)


def covering(jobs):
    """Some of the jobs, so that every override of any of them is in one."""
    seen = set()
    for job in jobs:
        if not seen.issuperset(job.overrides):
            seen.update(job.overrides)
            yield job


@pytest.mark.parametrize("name", sweeps.names())
@pytest.mark.parametrize(
    "scale", ["mini", *(pytest.param(s, marks=pytest.mark.long) for s in OTHER_SCALES)]
)
def test_a_job_is_what_hydra_composes_from_its_overrides(name, scale, forget, asked):
    chosen = [f"scale={scale}", *(BENCHMARK if name.startswith("staleness") else ())]
    composed = all_jobs(name, chosen)
    assert composed
    for job in covering(composed):
        assert json.dumps(job.config) == json.dumps(resolve(*job.overrides))  # in order
        assert job.path == run_path(resolve(*job.overrides))
    forget()
    asked.clear()
    figure = sweeps.load_figure(name, chosen)
    assert sweeps.jobs(figure, chosen) == composed
    assert not asked


def test_figures_compose_what_they_share_once(asked):
    for name in ("fig3", "fig9"):
        all_jobs(name, FEW)
    arms = [lines for lines in asked if "sync=offline" in lines]
    assert len(arms) == 8  # of five arms each; both have REINFORCE and GRPO
    assert len(asked) == 8 + 2  # and the figures


def test_other_files_or_code_are_other_compositions(tmp_path, monkeypatch):
    roots = [tmp_path / "package", tmp_path / "conf"]
    for root, name in zip(roots, ("PACKAGE", "CONF"), strict=True):
        root.mkdir()
        monkeypatch.setattr(schema, name, root)
    digests = set()

    def changed() -> bool:
        compositions.digest_of_code.cache_clear()
        before = len(digests)
        digests.add(compositions.digest_of_code())
        return len(digests) > before

    assert changed()
    for root, file in zip(roots, ("a.py", "b.yaml"), strict=True):
        (root / file).write_text("x: 1")
        assert changed()
        (root / file).write_text("x: 2")
        assert changed()
        (root / file).rename(root / f"moved_{file}")
        assert changed()
        (root / "notes.txt").write_text("nothing that is read")
        assert not changed()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "c.yaml").write_text("x: 1")
    (roots[1] / "group").symlink_to(tmp_path / "linked")
    assert changed()


def test_a_value_from_the_environment_is_that_of_now(monkeypatch, forget):
    overrides = [*FEW, "output_dir=${oc.env:PLACE}"]
    for place in ("one", "other"):
        monkeypatch.setenv("PLACE", place)
        forget()
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


def test_an_empty_cache_folder_changes_nothing(tmp_path, monkeypatch, forget):
    expected = all_jobs("fig5", FEW)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "file"))  # no folder
    forget()
    assert all_jobs("fig5", FEW) == expected
