"""What these tests lock: the regime's tables say what the rows of the runs say.

1. Numbers of one run against closed forms; lags and windows against the schedule that made them.
2. Runs that differ in their seed alone are one arm; namesakes are told apart.
3. A published value is set beside the arms it is for, and only at lags that they come back to.
4. A run of this code has a number in every block; one without the newer metrics leaves them out.
5. Text, JSON, a figure's files and the report hold the same numbers.
6. Bad input is one line and exit code 2; nothing loads torch.
"""

import dataclasses
import html
import json
import math
import subprocess
import sys
from pathlib import Path

import conftest
import fabricated
import numpy as np
import pytest
from conftest import SMALL, refused, resolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.analysis import claims
from rec_experiments.analysis.regime import quantities, tables
from rec_experiments.analysis.regime.arms import Arm, arms_in, arms_of
from rec_experiments.analysis.regime.ranges import Published, published_values
from rec_experiments.analysis.regime.sections import BY_LAG, BY_PART, CLIPPED, sections
from rec_experiments.analysis.report import contents, page
from rec_experiments.analysis.results import figure_data as collecting
from rec_experiments.analysis.results.figure_data import FigureData, NoRuns
from rec_experiments.analysis.results.runs import Run, read_run
from rec_experiments.cli import figures as figures_command
from rec_experiments.cli.main import run_command
from rec_experiments.errors import UserError
from rec_experiments.rollout.schedule import Schedule
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps import Panel


def rows_of(schedule: Schedule, steps: int, **metrics) -> list[dict]:
    """Rows of a run on this schedule; metrics: functions of lag and step."""
    rows: list[dict] = [{"step": 0, "eval/accuracy": 0.25}]
    for batch in range(steps):
        stale = schedule.ages(1, batch + 1)[batch]
        row = {"step": batch + 1, "train/staleness": float(stale)}
        row["train/policy_version"] = schedule.version(batch)
        row |= {f"train/{name}": of(stale, batch + 1) for name, of in metrics.items()}
        rows.append(row)
    return rows


def schedule(interval: int | None, offset: int = 0) -> Schedule:
    return Schedule(interval=interval, offset=offset, phase="paper")


EVERY_20 = schedule(20)


# One run -----------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(0, 12), st.integers(1, 90))
@settings(deadline=None)
def test_a_mean_at_a_lag_is_that_of_the_rows_that_the_schedule_gives_it(interval, offset, steps):
    made = schedule(interval, offset)
    rows = rows_of(made, steps, clip_fraction=lambda lag, step: lag + 100 * step)
    ages = made.ages(1, steps)
    lags = set(ages)
    assert quantities.lags_of(rows) == [None, *map(made.staleness, range(steps))]
    found = quantities.series(rows, "clip_fraction", quantities.lags_of(rows))
    for lag in lags:
        at = [lag + 100 * (b + 1) for b in range(steps) if ages[b] == lag]
        assert found.mean((lag, lag)) == pytest.approx(sum(at) / len(at))
    assert found.mean((max(lags) + 1, None)) is None
    assert found.mean((0, None)) == found.mean()


WIDE = ("clip.low=0.6", "clip.high=2.0")
NUMBERS = st.one_of(st.none(), st.integers(-9, 9), st.floats(), st.booleans(), st.just("much"))


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 5)), NUMBERS), max_size=40),
    st.one_of(st.none(), st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 5)))),
    st.sampled_from([None, *quantities.PARTS]),
)
@settings(deadline=None)
def test_an_arms_mean_is_that_of_its_runs_taken_row_by_row(rows, lags, part):
    """By a loop over the rows, bit for bit, for a run of all rows, one of half and one of none."""

    def taken(rows: list[tuple]) -> list[float]:
        at = rows if lags is None else [
            (lag, value) for lag, value in rows
            if lag is not None and lags[0] <= lag and (lags[1] is None or lag <= lags[1])
        ]  # fmt: skip
        found = [v for _, v in at if type(v) in (int, float) and math.isfinite(v)]
        size = max(1, round(len(found) / 10))
        first = {"middle": (len(found) - size) // 2, "end": len(found) - size}.get(part, 0)
        return found if part is None else found[first : first + size]

    parts = [rows, rows[::2], []]
    expected = [float(np.mean(values)) for each in parts if (values := taken(each))]
    runs = [
        Run(arm="a", column="c", seed=seed, path=Path(), state="done", rows=[
            {"step": n, "train/kl": value} | ({} if lag is None else {"train/staleness": lag})
            for n, (lag, value) in enumerate(each)
        ])
        for seed, each in enumerate(parts)
    ]  # fmt: skip
    found = Arm(name="a", section="c", runs=runs, config={}).mean_of("kl", lags, part)
    wanted = float(np.mean(expected)) if expected else None
    assert found == wanted or (math.isnan(found) and math.isnan(wanted))


def test_a_batch_of_several_lags_has_none():
    row = {"train/staleness": 2.0}
    assert quantities.lag(row) == 2
    assert quantities.lag(row | {"train/staleness_min": 2, "train/staleness_max": 2}) == 2
    assert quantities.lag(row | {"train/staleness_min": 1, "train/staleness_max": 3}) is None
    assert quantities.lag({"step": 0}) is None


@pytest.mark.parametrize(
    ("made", "interval", "windows"),
    [
        (EVERY_20, 20, 7.5),
        (schedule(1), 1, 150),
        (schedule(1, 10), 1, 150),  # its first batches all come from the initial policy
        (schedule(None), 150, 1),
    ],
)
def test_windows_are_steps_by_interval(made, interval, windows):
    rows = rows_of(made, 150)
    assert (quantities.interval(rows), quantities.windows(rows)) == (interval, windows)
    assert quantities.windows(rows[:1]) is None


@given(st.floats(0.2, 4), st.floats(1e-6, 10), st.integers(6, 30), st.integers(1, 3))
def test_exponent_of_a_power_of_the_lag(power, scale, interval, count):
    """In each window of at least five lags beside 0, the last of which may have been cut."""
    steps = count * interval - 2
    rows = rows_of(schedule(interval), steps, ess=lambda lag, step: scale * lag**power)
    found = quantities.exponents(rows, "ess")
    assert len(found) == count - (interval - 2 <= quantities.LEAST_LAGS)
    assert found == pytest.approx([power] * len(found))


def test_exponent_needs_positive_values_at_several_lags():
    rows = rows_of(EVERY_20, 60, ess=lambda lag, step: max(lag - 9, 0) if step > 20 else 0.0)
    assert len(quantities.exponents(rows, "ess")) == 2
    assert quantities.exponents(rows_of(schedule(1, 3), 60, ess=lambda *_: 1.0), "ess") == []
    assert quantities.exponents(rows[:1], "ess") == []


def test_accuracy_at_two_thirds_is_read_off_the_line_of_the_last_third():
    line = [{"step": s, "eval/accuracy": 0.1 + 0.004 * s} for s in range(0, 151, 10)]
    assert quantities.accuracy_at_two_thirds(line) == pytest.approx(0.5 / 0.7)
    early = [row | {"eval/accuracy": 0.9} if row["step"] < 100 else row for row in line]
    assert quantities.accuracy_at_two_thirds(early) == pytest.approx(0.5 / 0.7)
    flat = [row | {"eval/accuracy": 0.6} for row in line]
    assert quantities.accuracy_at_two_thirds(flat) == pytest.approx(1)
    assert quantities.accuracy_at_two_thirds(line[-2:]) is None
    assert quantities.accuracy_at_two_thirds([]) is None
    dead = [row | {"eval/accuracy": 0.0} for row in line]
    assert quantities.accuracy_at_two_thirds(dead) is None


@given(st.sets(st.integers(0, 200), min_size=1))
def test_lags_shown_are_some_of_those_that_occur_from_first_to_last(lags):
    shown = quantities.spread(lags)
    assert set(shown) <= lags
    assert shown == sorted(set(shown))
    assert {min(lags), max(lags)} <= set(shown)
    assert len(shown) <= quantities.MOST_LAGS
    ranges = quantities.between(shown)
    assert [lag for first, last in ranges for lag in range(first, last + 1)] == [
        *range(min(lags), max(lags) + 1)
    ]


def test_lags_shown_are_evenly_spaced():
    assert quantities.spread(set(range(20))) == [0, 1, 4, 9, 14, 19]
    assert quantities.spread(set()) == quantities.between([]) == []


# Arms and published values -----------------------------------------------------------------------


def write_run(path: Path, config: dict, rows: list[dict]) -> Path:
    return fabricated.write_run(path, rows, config=config)


@pytest.fixture(scope="module")
def configs() -> dict[str, dict]:
    return {
        "grpo": resolve("algo=grpo", "sync=interval20"),
        "slow": resolve("algo=grpo", "sync=interval20", "optimizer.learning_rate=1e-9"),
        "wide": resolve("algo=rec_oneside_nois", *WIDE, "sync=interval20"),
        "fresh": resolve("algo=grpo", "sync=on_policy"),
        "offline": resolve("algo=grpo", "sync=offline"),
    }


def test_runs_that_differ_in_their_seed_alone_are_one_arm(tmp_path, configs):
    folders = [
        write_run(tmp_path / f"{name}{seed}", {**configs[name], "seed": seed}, rows)
        for name, rows in (
            ("grpo", rows_of(EVERY_20, 40)),
            ("fresh", rows_of(schedule(1), 40)),
            ("slow", rows_of(EVERY_20, 40)),
            ("wide", rows_of(EVERY_20, 40)),
        )
        for seed in range(2)
    ]
    arms = arms_of(folders)
    rate = configs["grpo"]["optimizer"]["learning_rate"]
    assert [(arm.section, arm.name) for arm in arms] == [
        ("interval 20", f"GRPO · lr={rate}"),
        ("interval 20", "GRPO · lr=1e-09"),
        ("interval 20", "REC-OneSide-NoIS"),
        ("on-policy", f"GRPO · lr={rate}"),
    ]
    assert [[run.seed for run in arm.runs] for arm in arms] == [[0, 1]] * 4
    with pytest.raises(UserError, match="is not a run folder"):
        arms_of([tmp_path])


def test_the_same_run_in_two_folders_counts_once(tmp_path, configs):
    """The first does: two copies would weigh twice in a mean over seeds."""
    folders = [
        write_run(tmp_path / name, {**configs["grpo"], "seed": seed}, rows_of(EVERY_20, steps))
        for name, seed, steps in (("a", 0, 40), ("copy", 0, 60), ("b", 1, 40))
    ]
    [arm] = arms_of([*folders, folders[0]])
    assert [run.path for run in arm.runs] == [folders[0], folders[2]]


def test_a_folder_without_a_run_is_one_line(tmp_path, configs):
    """A run that has just begun, one whose state is lost, and something else."""
    begun = write_run(tmp_path / "begun", configs["grpo"], [])
    with pytest.raises(UserError, match="begun: has no rows yet"):
        arms_of([begun])
    lost = write_run(tmp_path / "lost", configs["grpo"], rows_of(EVERY_20, 3))
    (lost / "status.json").unlink()
    with pytest.raises(UserError, match="lost: has no rows yet"):
        arms_of([lost])
    with pytest.raises(UserError, match=r"other: its config\.yaml is not that of a run"):
        arms_of([write_run(tmp_path / "other", {"a": 1}, rows_of(EVERY_20, 3))])


def arm(config: dict, made: Schedule, steps: int = 60, section: str = "", **metrics) -> Arm:
    run = Run(
        arm="", column="", seed=0, path=Path(), state="done", rows=rows_of(made, steps, **metrics)
    )
    return Arm(name="x", section=section, runs=[run], config=config)


def published(**changes) -> Published:
    """Of the clipped share of GRPO at lag 1 to 3."""
    first = {f.name: None for f in dataclasses.fields(Published)}
    about = {"name": "y", "source": "s", "setting": "t", "read": "text", "arms": {"algo": "GRPO"}}
    given = {"quantity": "clip_fraction", "lags": (1, 3), "low": 0.1, "high": 0.2}
    return Published(**{**first, **about, **given, **changes})


def test_an_arm_is_compared_where_its_configuration_fits():
    assert published().is_for({"algo": "GRPO", "seed": 0})
    assert not published().is_for({"algo": "REINFORCE"})


def test_a_lag_counts_if_a_run_comes_back_to_it():
    """The first steps of an offline or offset run are the only ones at their lags."""
    share = {"clip_fraction": lambda lag, step: lag / 10}
    every = arm({"algo": "GRPO"}, EVERY_20, **share)
    assert published().value(every) == pytest.approx(0.2)
    assert published(lags=(2, None)).value(every) is not None
    assert published(lags=(1, 20)).value(every) is None
    for made in (schedule(None), schedule(1, 10), schedule(1)):
        assert published().value(arm({"algo": "GRPO"}, made, **share)) is None
    assert published(lags=(10, 10)).value(
        arm({"algo": "GRPO"}, schedule(1, 10), **share)
    ) == pytest.approx(1)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A run of this code."""
    overrides = ("steps=8", "sync.interval=2", "algo=grpo", "kl_every=1", "eval_every=1")
    return conftest.run(tmp_path_factory.mktemp("real") / "run", *SMALL, *overrides).path


def test_the_published_values_of_the_package(real):
    """Quantities that runs have, keys that configurations have, ranges, names of their own."""
    entries = published_values()
    assert len({entry.name for entry in entries}) == len(entries) > 5
    [arm] = arms_of([real])
    for entry in entries:
        assert entry.low is None or entry.high is None or entry.low <= entry.high
        assert (entry.low, entry.high) != (None, None)
        assert entry.part in (None, *quantities.PARTS)
        assert entry.lags is None or (type(entry.lags) is tuple and len(entry.lags) == 2)
        assert entry.arms.keys() <= arm.config.keys()
        measured = arm.mean_of(entry.quantity, None, entry.part) is not None
        assert measured or entry.quantity in quantities.DERIVED
        assert entry.read in ("log file", "text", "table", "figure")
        assert len(entry.source) > 3
        assert len(entry.setting) > 3


# Tables ------------------------------------------------------------------------------------------


def test_every_block_of_a_run_of_this_code_has_numbers(real):
    [section] = sections(arms_of([real]))
    assert section.title == "interval 2"
    assert section.unmeasured == []
    cells = {
        (block.title, head): cell
        for block in section.blocks
        for [(_, row)] in [block.rows]
        for head, cell in zip(block.head, row, strict=True)
    }
    assert None not in cells.values()
    rows = RunFolder(real).metrics()[1:]
    at = [row["train/ess"] for row in rows if row["train/staleness"] == 1]
    assert cells[BY_LAG["ess"], "lag 1"] == pytest.approx(sum(at) / 4)
    clipped = [100 * row["train/clip_fraction"] for row in rows]
    assert cells[BY_LAG["clip_fraction"], "all"] == pytest.approx(sum(clipped) / 8)
    assert cells["runs and batches", "windows"] == 4


def test_an_old_run_leaves_out_what_it_has_not_measured(tmp_path, configs):
    rows = rows_of(EVERY_20, 60, clip_fraction=lambda lag, step: lag / 1000)
    [section] = sections(arms_of([write_run(tmp_path / "old", configs["grpo"], rows)]))
    titles = [block.title for block in section.blocks]
    assert titles == ["runs and batches", BY_LAG["clip_fraction"]]
    assert len(section.unmeasured) == len(BY_LAG) - 1 + len(BY_PART) + 3
    assert section.blocks[0].rows[0][1] == [1, 60, 20, 3, None, None]
    assert CLIPPED[0][1](arms_of([tmp_path / "old"])[0]) is None
    assert "not measured: clipped share by side" in tables.text([section])


def test_no_rows_at_all(tmp_path, configs):
    folder = write_run(tmp_path / "run", configs["grpo"], [{"step": 0, "eval/accuracy": 0.5}])
    [section] = sections(arms_of([folder]))
    assert section.blocks[0].rows == [("GRPO", [1, 0, None, None, None, None])]
    assert tables.text([section])


@pytest.fixture
def compared(tmp_path, configs):
    """Two arms, lag / 1000 of whose tokens are clipped."""
    rows = rows_of(EVERY_20, 60, clip_fraction=lambda lag, step: lag / 1000, kl=lambda lag, _: 0.5)
    return [write_run(tmp_path / name, configs[name], rows) for name in ("grpo", "wide")]


def test_published_values_stand_beside_the_arms_they_are_for(compared):
    [section] = sections(arms_of(compared))
    found = {
        each.published.name: each.arms for block in section.blocks for each in block.comparisons
    }
    [(name, value, lies)] = found["verl, PPO 0.5B"]  # at lag 0 to 3
    assert (name, value, lies) == ("GRPO", pytest.approx(0.0015), "inside")
    [(name, value, lies)] = found["paper, NoIS (0.6, 2.0)"]  # at lag 1 to 19
    assert (name, value, lies) == ("REC-OneSide-NoIS", pytest.approx(0.01), "above")
    assert [each[::2] for each in found["paper, GRPO"]] == [("GRPO", "above")]
    assert "paper, REINFORCE" not in found
    assert "M2PO's GRPO at lag 256" not in found


def test_text_and_json_hold_the_same_numbers(compared):
    found = sections(arms_of(compared))
    [plain] = json.loads(json.dumps(tables.plain(found)))
    block = plain["blocks"][1]
    lags = (f"lag {lag}" for lag in (0, 1, 4, 9, 14, 19))
    assert block["columns"] == ["all", *lags, "exponent", "95 %"]
    assert block["arms"]["GRPO"][1:-1] == pytest.approx([0, 0.1, 0.4, 0.9, 1.4, 1.9, 1])
    assert block["arms"]["GRPO"][-1] == pytest.approx([1, 1])
    beside = next(each for each in block["published"] if each["name"] == "verl, PPO 0.5B")
    assert beside["here"] == {"GRPO": {"value": pytest.approx(0.0015), "place": "inside"}}
    text = tables.text(found)
    assert text.startswith("interval 20\n")
    [row] = [line for line in text.splitlines() if "GRPO" in line and "1.9" in line]
    cells = row.split()
    assert cells == ["GRPO", "0.95", "0", "0.1", "0.4", "0.9", "1.4", "1.9", "1", "1–1"]
    assert "verl, PPO 0.5B" in text
    assert "GRPO 0.15, inside" in text
    assert "checked 22 November 2026" in text
    assert "not checked" in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (150.0, "150"), (7.5, "7.5"), (0.0123, "0.012"), (96.2345, "96.2"),
     (1234.5, "1234"), (3.9e-13, "3.9e-13"), (-2.345, "-2.35"), (1e304, "1e+304")],
)  # fmt: skip
def test_numbers_have_the_digits_that_count(value, written):
    assert tables.number(value) == written


@pytest.mark.parametrize(
    ("entry", "where", "span"),
    [
        ({}, "at lag 1 to 3", "10 to 20"),
        ({"lags": (19, 19), "low": None}, "at lag 19", "at most 20"),
        ({"lags": (256, None), "high": None}, "at lag 256 and more", "at least 10"),
        ({"lags": None, "part": "end", "quantity": "kl", "low": 0.2}, "at the end", "0.2"),
        ({"part": "start"}, "at lag 1 to 3, at the start", "10 to 20"),
    ],
)
def test_what_is_published_in_words(entry, where, span):
    assert (tables.where(published(**entry)), tables.span(published(**entry))) == (where, span)


# The commands ------------------------------------------------------------------------------------


ORIGIN = {
    "command": ["run"], "commit": "c0ffee", "diff": "", "device": "cpu", "threads": 1,
    "python": "3.11", "platform": "Linux", "versions": {},
}  # fmt: skip


@pytest.fixture
def figure(compared, monkeypatch) -> FigureData:
    """fig3, of the two arms and no other; no other figure has runs."""
    names = ["GRPO", "<wide>"]
    for path in compared:
        (path / "provenance.json").write_text(json.dumps(ORIGIN))
    data = FigureData(
        name="fig3",
        title="A figure",
        caption="",
        scale="mini",
        claim_seeds=None,
        shown=[0],
        arms=names,
        columns=["the column"],
        panels=[Panel(metric="train/kl", label="KL", log=False)],
        runs=[
            read_run(name, "the column", 0, path)
            for name, path in zip(names, compared, strict=True)
        ],
    )

    def collect(name, folders, overrides, for_claims=False):
        if name != "fig3":
            raise NoRuns(name)
        return data

    for module in (claims, figures_command, collecting):
        monkeypatch.setattr(module, "collect", collect)
    return data


def test_a_figures_files_hold_the_regime(figure, tmp_path):
    run_command("figures", *["fig3", f"--out={tmp_path / 'out'}"])
    written = (tmp_path / "out" / "fig3.txt").read_text()
    assert tables.text(sections(arms_in(figure))) in written
    [section] = json.loads((tmp_path / "out" / "fig3.json").read_text())["regime"]
    assert section["section"] == "the column"
    assert section["blocks"][1]["arms"]["<wide>"][-3] == pytest.approx(1.9)


def test_the_report_has_the_regime_of_each_figure_collapsed(figure):
    found = contents.gather(["fig3", "fig8"], None, [], every_run=False)
    assert [part.regime for part in found.figures] == [tables.text(sections(arms_in(figure))), ""]
    written = page.render(found, "today", Path())
    assert written.count("<details><summary>Regime of ") == 1
    assert html.escape(found.figures[0].regime) in written
    assert "<wide>" not in written


def test_the_command_prints(compared, capsys):
    run_command("regime", *map(str, compared))
    assert "GRPO 0.95 0 0.1 0.4 0.9 1.4 1.9" in " ".join(capsys.readouterr().out.split())


def test_the_command_reads_a_sweep(figure, capsys):
    run_command("regime", *["--sweep=fig3"])
    assert "<wide>" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no runs are named"),
        (["nowhere"], "nowhere: is not a run folder"),
        (["seed=0"], "seed=0: selects runs of a sweep"),
        (["--sweep=fig3", "here"], "here: not allowed with --sweep fig3"),
        (["--sweep=fig99"], "sweep=fig99: no such figure"),
    ],
)
def test_bad_input(arguments, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    line = refused(arguments, monkeypatch, capfd, lambda: run_command("regime", *sys.argv[1:]))
    assert said in line
    assert not list(Path().iterdir())


def test_folders_are_read_without_torch(compared):
    program = (
        "import sys; from rec_experiments.cli.main import run_command; "
        "run_command('regime', *sys.argv[1:]);"
        "assert 'torch' not in sys.modules, 'torch is loaded'"
    )
    subprocess.run([sys.executable, "-c", program, *map(str, compared)], check=True)


@pytest.mark.parametrize(
    "change", [{"algo": {}}, {"algo": "x"}, {"sync": None}, {"seed": "x"}, {"seed": float("inf")}]
)
def test_a_configuration_that_no_run_wrote_is_told_with_its_folder(change, tmp_path):
    (tmp_path / "config.yaml").write_text(json.dumps(resolve("algo=grpo") | change))
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(UserError, match=f"run folder {tmp_path}: its config.yaml was not written"):
        arms_of([tmp_path])
