"""Resuming with another number of ranks (resplit=true).

1. M ranks restore exactly what N ranks saved: weights, moments, other policies, behavior weights,
   pending and replayed draws, and a half-used batch.
2. The run ends as N ranks would have ended it, up to rounding.
3. Without resplit=true it is refused in one line.
"""

import pytest
import torch
from conftest import assert_equal, experiment, refused, resolve
from hypothesis import given
from hypothesis import strategies as st
from ranks import Ranks
from test_distributed import MOVING, SHAPES, run_on

from rec_experiments.common.distributed import ALONE, World, whole
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder

RUN = (
    "steps=6", "checkpoint_every=3", "micro_batch_size=3", "eval_every=6", "sync.interval=2",
    "sync.offset=3", "optimizer.learning_rate=0.002",
)  # fmt: skip
# Of each shape the step of its state: of several updates a batch, in the midst of one.
PLAIN = "one update a batch"
KINDS = {PLAIN: 3, "a moving average": 6, "replay": 6, "refill": 3}


@pytest.fixture(scope="module")
def three():
    pool = Ranks(3)
    yield pool
    pool.close()


@pytest.fixture
def on(ranks, request):
    """Call a function on each of so many ranks."""

    def call(size, function, *arguments):
        if size == 1:
            return [function(ALONE, *arguments)]
        return (ranks if size == 2 else request.getfixturevalue("three"))(function, *arguments)

    return call


def prepared(world, path, overrides):
    overrides = (*MOVING, *overrides, f"ranks={world.size}", f"run_dir={path}")
    exp, folder = experiment(*overrides), RunFolder(path, world)
    folder.check(resolve(*overrides))
    folder.start(resolve(*overrides), {})
    return folder, prepare(exp, world=world)


def gathered(world, path, overrides):
    """The newest state, as the ranks would go on from it, put together."""
    folder, trainer = prepared(world, path, overrides)
    optimizer, feed = trainer.torch_optimizer, trainer.rollouts
    state, _ = folder.load_checkpoint(resplit=True)
    step, batch = trainer.state.restore(state)
    folder.unlock()

    def of(weights):
        return {name: whole(tensor).clone() for name, tensor in weights.items()}

    return {
        "step": step,
        "batch": batch.state() if batch else None,
        "model": of(trainer.model.state_dict()),
        "moments": [of(optimizer.state[weight]) for weight in trainer.model.parameters()],
        "policies": {
            role: of(model.state_dict()) for role, model in sorted(trainer.policies.models.items())
        },
        "behavior": of(feed.behavior.weights),
        "rollouts": feed.state(),
    }


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        *(pytest.param(2, 1, kind, marks=pytest.mark.long) for kind in KINDS),
        (2, 3, "a moving average"),
    ],
)
def test_resplit_state(on, tmp_path, before, after, kind):
    step, path = KINDS[kind], tmp_path / "run"
    overrides = (
        *RUN, "steps=12", "sync.interval=1", "sync.offset=2", f"checkpoint_every={step}",
        *SHAPES[kind],
    )  # fmt: skip
    on(before, run_on, path, overrides, step + 1)
    expected = on(before, gathered, path, overrides)[0]
    found = on(after, gathered, path, (*overrides, "resplit=true"))
    for of_rank in found:
        assert_equal(of_rank, expected)
    assert expected["step"] == step
    assert expected["rollouts"]["pending"]
    assert (expected["batch"] is not None) == (kind in ("a moving average", "replay"))
    assert bool(expected["rollouts"]["drawn"]) == (kind == "replay")
    assert expected["moments"][0]["exp_avg"].any()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 5), st.booleans())
def test_rows(sizes, ranks, matrix):
    """The parts of all ranks are the tensor, whatever parts it is made of."""
    parts = [*torch.randn(sum(sizes), *[3] * matrix).split(sizes)]
    worlds = [World(rank, ranks) for rank in range(ranks)]
    trees = [{"w": part, "count": torch.tensor(2.0), "n": 3} for part in parts]
    found = [world.joined(trees) for world in worlds]
    assert torch.equal(torch.cat([each["w"] for each in found]), torch.cat(parts))
    assert all((each["count"], each["n"]) == (2.0, 3) for each in found)
    if len(sizes) != ranks:
        expected = [world.part(torch.cat(parts)) for world in worlds]
        assert all(torch.equal(each["w"], own) for each, own in zip(found, expected, strict=True))


def test_resplit_run(on, tmp_path):
    before, after = 1, 2
    entire, path = on(before, run_on, tmp_path / "whole", RUN), tmp_path / "run"
    on(before, run_on, path, RUN, 4)
    choice = (*RUN, "resplit=true", f"run_dir={path}")
    rows, weights, _, notes = on(after, run_on, path, choice)[0]
    assert notes == [
        f"a checkpoint of {before} ranks is split among {after}: from here on, results are not "
        "bit-identical to those of the original number of ranks",
        "resumed after gradient step 3",
    ]
    assert rows[:4] == entire[0][0][:4]
    for row, expected in zip(rows, entire[0][0], strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5), row["step"]
    for name, tensor in entire[0][1].items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=2e-5)
    again = on(after, run_on, path, RUN)[0]  # as any other, and without the choice
    assert again[0] == rows
    assert again[3] == ["resumed after gradient step 6"]


def test_refused(on, tmp_path, monkeypatch, capfd):
    on(2, run_on, tmp_path / "run", RUN, 1)
    for arguments, line in (
        ([], "ranks is 2 there and 1 here; choose another run_dir, or resplit=true, without"),
        (["resplit=true", "seed=5"], "seed is 0 there and 5 here; choose another run_dir"),
        (["resplit=true", "run_dir=null"], "resplit=true: needs run_dir, the folder of the run"),
    ):
        words = [*MOVING, *RUN, f"run_dir={tmp_path / 'run'}", *arguments]
        assert line in refused(words, monkeypatch, capfd)
