"""What these tests lock: a verdict says what the runs say.

1. Curves that have every property the papers claim: every claim is supported.
2. Spoil one property: that claim is not supported and names the part, and no other part fails.
3. One seed, unfinished runs or none: not enough data. Seeds that disagree: not enough data.
4. Every check finds its arms and columns in the sweeps, at both scales.
5. A figure's files hold its claims; the command line prints and writes all of them.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fabricated import PERIOD, saw, write_run

from rec_experiments import claims, sweeps
from rec_experiments.claims import __main__ as cli
from rec_experiments.claims import definitions, tables
from rec_experiments.claims.definitions import (
    INTERVAL,
    NARROW,
    NARROW_4,
    NARROW_IS,
    OFFLINE,
    OFFSET,
    ON_POLICY,
    WIDE,
)
from rec_experiments.claims.engine import Outcome, Range, judge
from rec_experiments.figures import __main__ as figures_cli
from rec_experiments.results import collect
from rec_experiments.results.runs import FigureData, Run

Curve = Callable[[float, int], float]  # of (share of the run, seed)
Cell = tuple[str, str, str]  # patterns of figure, arm and column

STEPS, EVERY = 100, 10
COLUMNS = {
    "fig5": [ON_POLICY, INTERVAL],
    **{name: [INTERVAL, OFFSET, OFFLINE] for name in ("fig3", "fig9", "fig11")},
    **{name: [INTERVAL] for name in ("fig4", "fig6", "fig7", "fig10")},
    "paper2": [""],
}
RING, TWO_SIDE = "REC-Ring-NoIS (0.2, 0.2) & (0.6, 2.0)", "REC-TwoSide-NoIS (0.2)"
ARMS = {
    "fig3": ["REINFORCE", "GRPO", NARROW, NARROW_IS, WIDE],
    "fig4": [NARROW_4, "REC-OneSide-IS (0.2, 0.25)", "REC-Ring-NoIS (0.2, 0.25) & (0.6, 2.0)",
             WIDE, "REC-TwoSide-NoIS (0.2, 0.25)", "REC-TwoSide-NoIS (0.6, 2.0)"],
    "fig5": ["REINFORCE", "RED-Weight", "RED-Drop", WIDE],
    "fig6": ["GRPO", NARROW, "RED-Weight"],
    "fig7": ["GRPO", NARROW, "RED-Weight"],
    "fig9": ["REINFORCE", "GRPO", TWO_SIDE, "REC-TwoSide-IS (0.2)", RING],
    "fig10": ["GRPO (0.2), lr 5e-3", "GRPO (0.2), lr 1e-3", f"{NARROW}, lr 5e-3",
              f"{NARROW}, lr 1e-3", f"{WIDE}, lr 5e-4", "REINFORCE, lr 1e-3"],
    "fig11": ["REINFORCE", WIDE, "OPMD (0.1)", "AsymRE (-0.1)"],
    "paper2": [definitions.FRESH, definitions.MASKED, definitions.OLD_MODEL, definitions.OLD_DATA],
}  # fmt: skip


def through(*heights: float) -> Curve:
    """Straight lines through points that lie evenly over the run; seeds differ a little."""
    places = np.linspace(0, 1, len(heights))
    return lambda share, seed: float(np.interp(share, places, heights)) + 0.002 * seed


FAST, SLOW, FLAT = through(0.3, 0.75, 0.8, 0.85, 0.85), through(0.3, 0.6), through(0.3, 0.3)
COLLAPSE = through(0.3, 0.65, 0.2, 0, 0, 0, 0)
DIP = through(0.3, 0.6, 0.3, 0.55, 0.6)
PLATEAU = through(0.3, 0.45, 0.45, 0.45)
DECLINE = through(0.3, 0.5, 0.7, 0.5, 0.3, 0.2)
FRAGILE = through(0.3, 0.7, 0.7, 0.3, 0.1)


def teeth(height: float, period: int = PERIOD) -> Curve:
    return lambda share, seed: saw(round(share * STEPS), height, period)


# What the papers describe; of the patterns that fit a cell, the last wins.
ACCURACY: dict[Cell, Curve] = {
    ("*", "*", "*"): SLOW,
    ("*", WIDE + "*", "*"): FAST,
    ("*", "REINFORCE", "*"): COLLAPSE,
    ("*", "REINFORCE", OFFSET): DIP,
    ("fig5", "RE[DC]-*", "*"): FAST,
    ("fig5", "REINFORCE", ON_POLICY): FAST,
    ("*", "* (0.2)", OFFLINE): PLATEAU,
    ("*", WIDE, OFFLINE): DECLINE,
    ("fig9", "REC-Ring-*", "*"): FAST,
    ("fig9", "REC-TwoSide-*", "*"): FRAGILE,
    ("fig9", "GRPO", "*"): SLOW,
    ("paper2", "*", "*"): FAST,
    ("paper2", definitions.FRESH, "*"): DIP,
    ("paper2", definitions.OLD_DATA, "*"): FLAT,
}
OTHERS: dict[str, dict[Cell, Curve]] = {
    "train/reward": {
        ("*", "*", "*"): SLOW,
        ("fig4", WIDE, "*"): FAST,
        ("fig[67]", "RED-*", "*"): FAST,
    },
    "train/kl": {("*", "*", "*"): SLOW, ("fig7", "RED-*", "*"): through(0.1, 0.2)},
    "train/clip_fraction": {("*", "*", "*"): teeth(0.02), ("*", "*(0.6, 2.0)", "*"): teeth(0.002)},
    "train/entropy": {("*", "*", "*"): through(0.5, 0.1), ("*", "RED-*", "*"): through(0.5, 0.4)},
    "train/response_length": {
        ("*", "*", "*"): through(20, 40), ("*", "RED-*", "*"): through(20, 25)
    },
}  # fmt: skip
WORLD = {"eval/accuracy": ACCURACY, **OTHERS}
World = dict[str, dict[Cell, Curve]]


def rows_of(figure: str, arm: str, column: str, seed: int, world: World) -> list[dict]:
    def fits(cell: Cell) -> bool:
        return all(map(fnmatchcase, (figure, arm, column), cell))

    curves = {m: [c for cell, c in cells.items() if fits(cell)][-1] for m, cells in world.items()}
    rows: list[dict] = [{"step": step} for step in range(STEPS + 1)]
    for row in rows[::EVERY]:
        row["eval/accuracy"] = curves["eval/accuracy"](row["step"] / STEPS, seed)
    for row in rows[1:]:
        row["train/staleness"] = (row["step"] - 1) % PERIOD
        row |= {metric: curves[metric](row["step"] / STEPS, seed) for metric in OTHERS}
    return rows


def figure_data(name: str, world: World = WORLD, seeds: int = 3, state: str = "done") -> FigureData:
    runs = [
        Run(
            arm=arm,
            column=column,
            seed=seed,
            path=Path(f"{name}/{arm}/{column}/{seed}"),
            state=state,
            rows=rows_of(name, arm, column, seed, world),
        )
        for column in COLUMNS[name]
        for arm in ARMS[name]
        for seed in range(seeds)
    ]
    return FigureData(
        name=name,
        title=name,
        caption="",
        scale="mini",
        arms=ARMS[name],
        columns=COLUMNS[name],
        panels=[],
        runs=runs,
    )


def all_data(**options) -> dict[str, FigureData]:
    return {name: figure_data(name, **options) for name in ARMS}


BASE = all_data()

# Verdicts ----------------------------------------------------------------------------------------


def test_curves_that_have_every_property_support_every_claim():
    found = claims.verdicts(BASE)
    assert [(v.claim.id, v.reasons) for v in found] == [(c.id, []) for c in claims.CLAIMS]
    assert {v.title for v in found} == {"supported in miniature"}
    assert {v.seeds for v in found} == {3}


SPOILED: list[tuple[str, str, str, Cell, Curve]] = [
    # claim, part that fails, metric, cell that is changed, its new curve
    ("on-policy-parity", "learns", "eval/accuracy", ("fig5", "*", ON_POLICY), FLAT),
    ("on-policy-parity", "alike", "eval/accuracy", ("fig5", "RED-Drop", ON_POLICY), SLOW),
    ("on-policy-parity", "alike", "eval/accuracy", ("fig5", WIDE, ON_POLICY), through(0.3, 1, 1)),
    ("reinforce-collapses", "rises", "eval/accuracy", ("*", "REINFORCE", INTERVAL),
     through(0.3, 0.1, 0)),
    ("reinforce-collapses", "then collapses", "eval/accuracy", ("*", "REINFORCE", OFFLINE), FAST),
    ("reinforce-collapses", "dips", "eval/accuracy", ("*", "REINFORCE", OFFSET), FAST),
    ("reinforce-collapses", "and does not collapse", "eval/accuracy", ("*", "REINFORCE", OFFSET),
     COLLAPSE),
    ("is-not-essential", "alike", "eval/accuracy", ("fig3", NARROW_IS, OFFSET), FLAT),
    ("is-not-essential", "alike", "train/reward", ("fig4", "REC-OneSide-IS*", "*"), FAST),
    ("wide-clip-faster", "learns faster", "eval/accuracy", ("fig3", WIDE, OFFSET), SLOW),
    ("wide-clip-faster", "learns faster", "train/reward", ("fig4", WIDE, "*"), SLOW),
    ("wide-clip-faster", "stable", "eval/accuracy", ("*", WIDE, INTERVAL),
     through(0.3, 1, 1, 1, 0.6, 0.5)),
    ("offline-trade-off", "plateaus early and stays", "eval/accuracy", ("fig3", NARROW, OFFLINE),
     SLOW),
    ("offline-trade-off", "rises higher", "eval/accuracy", ("fig3", WIDE, OFFLINE),
     through(0.3, 0.45, 0.2)),
    ("offline-trade-off", "then declines", "eval/accuracy", ("fig3", WIDE, OFFLINE), FAST),
    ("two-side-fast-then-fragile", "fast at first", "eval/accuracy", ("fig9", TWO_SIDE, OFFSET),
     through(0.3, 0.3, 0.3, 0.2, 0.1)),
    ("two-side-fast-then-fragile", "declines later", "eval/accuracy", ("fig9", TWO_SIDE, OFFLINE),
     FAST),
    ("two-side-fast-then-fragile", "not slow", "eval/accuracy", ("fig9", RING, INTERVAL),
     through(0.3, 0.2, 0.2, 0.8, 0.8, 0.8)),
    ("two-side-fast-then-fragile", "stable", "eval/accuracy", ("fig9", RING, INTERVAL), FRAGILE),
    ("lr-is-no-substitute", "stays ahead", "eval/accuracy", ("fig10", "GRPO*, lr 1e-3", "*"), FAST),
    ("regularised-baselines-hold", "learns", "eval/accuracy", ("fig11", "OPMD*", OFFSET), FLAT),
    ("regularised-baselines-hold", "stable", "eval/accuracy", ("fig11", "AsymRE*", OFFSET),
     through(0.3, 0.8, 0.8, 0.5)),
    ("data-weighting-holds", "stable", "eval/accuracy", ("fig5", "RED-Drop", INTERVAL),
     through(0.3, 1, 1, 1, 0.6, 0.6)),
    ("data-weighting-holds", "comparable", "eval/accuracy", ("fig5", "RED-Weight", INTERVAL), SLOW),
    ("red-weight-less-drift", "higher reward in fig6", "train/reward", ("fig6", "RED-*", "*"),
     SLOW),
    ("red-weight-less-drift", "higher reward in fig7", "train/reward", ("fig7", "RED-*", "*"),
     SLOW),
    ("red-weight-less-drift", "similar KL in fig6", "train/kl", ("fig6", "RED-*", "*"), FAST),
    ("red-weight-less-drift", "lower KL in fig7", "train/kl", ("fig7", "RED-*", "*"), SLOW),
    ("red-weight-less-drift", "stabler entropy in fig7", "train/entropy", ("fig7", "RED-*", "*"),
     through(0.9, 0.1)),
    ("red-weight-less-drift", "stabler length in fig7", "train/response_length",
     ("fig7", "RED-*", "*"), through(20, 40)),
    ("clip-sawtooth", "a sawtooth", "train/clip_fraction", ("fig9", "GRPO", "*"), teeth(0.02, 7)),
    ("clip-sawtooth", "a sawtooth", "train/clip_fraction", ("fig9", RING, "*"), through(0, 0.02)),
    ("clip-sawtooth", "clips less", "train/clip_fraction", ("fig4", WIDE, "*"), teeth(0.02)),
    ("zero-variance-masking-stabilises", "falls less deeply", "eval/accuracy",
     ("paper2", definitions.MASKED, "*"), through(0.5, 1, 0.5, 1)),
    ("zero-variance-masking-stabilises", "is not worse", "eval/accuracy",
     ("paper2", definitions.MASKED, "*"), FLAT),
    ("v10-on-par", "stable", "eval/accuracy", ("paper2", definitions.OLD_MODEL, "*"),
     through(0.3, 1, 1, 0.5)),
    ("v10-on-par", "on par or better", "eval/accuracy", ("paper2", definitions.OLD_MODEL, "*"),
     FLAT),
    ("v10-on-par", "slower", "eval/accuracy", ("paper2", definitions.OLD_DATA, "*"), FAST),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "part", "metric", "cell", "curve"), SPOILED)
def test_a_spoiled_property_is_found_and_named(claim, part, metric, cell, curve):
    world = {**WORLD, metric: {**WORLD[metric], cell: curve}}
    names = [name for name in ARMS if fnmatchcase(name, cell[0])]
    data = {**BASE, **{name: figure_data(name, world) for name in names}}
    verdict = judge(next(each for each in claims.CLAIMS if each.id == claim), data)
    assert verdict.title == "not supported in miniature"
    failing = {f.check.says for f in verdict.findings if f.outcome == Outcome.not_supported}
    assert failing == {part}
    assert f"{part} (" in verdict.sentence
    assert Outcome.not_enough_data not in {f.outcome for f in verdict.findings}


def test_every_part_of_every_claim_is_spoiled_once():
    parts = {(claim.id, check.says) for claim in claims.CLAIMS for check in claim.checks}
    untested = parts - {(claim, part) for claim, part, *_ in SPOILED}
    assert untested == {("data-weighting-holds", "learns")}  # without it, not comparable either


@pytest.mark.parametrize(
    "options",
    [{"seeds": 1}, {"state": "running"}, None],
    ids=["one seed", "unfinished", "no runs"],
)
def test_too_few_finished_seeds_are_not_enough_data(options):
    found = claims.verdicts({} if options is None else all_data(**options))
    assert {v.title for v in found} == {"not enough data"}
    assert all(f.interval is None for v in found for f in v.findings)
    one_seed = options == {"seeds": 1}
    expected = "one seed, an interval needs at least 2" if one_seed else "no finished runs"
    assert all(expected in v.sentence for v in found)


def test_claims_of_paper_2_say_that_they_have_no_runs():
    found = {v.claim.id: v for v in claims.verdicts({"fig3": BASE["fig3"]})}
    for name in ("zero-variance-masking-stabilises", "v10-on-par"):
        assert found[name].sentence == f"{name}: not enough data: no finished runs"
        assert "No sweep makes these runs yet." in tables.text([found[name]])


def test_seeds_that_disagree_do_not_decide():
    def torn(share: float, seed: int) -> float:
        return FAST(share, 0) if seed else SLOW(share, 0)

    cell = ("fig3", WIDE, INTERVAL)
    world = {**WORLD, "eval/accuracy": {**ACCURACY, cell: torn}}
    found = claims.verdicts({**BASE, "fig3": figure_data("fig3", world)})
    verdict = next(v for v in found if v.claim.id == "wide-clip-faster")
    assert verdict.outcome == Outcome.not_enough_data
    assert verdict.reasons == [
        f"learns faster ({WIDE} − {NARROW}, {INTERVAL}): these seeds do not decide"
    ]


def test_arms_are_compared_seed_by_seed():
    """A seed that is hard for both arms widens no interval, and a seed of one arm is left out."""
    luck = {0: 0.0, 1: 0.1, 2: -0.1}
    world = {**WORLD, "eval/accuracy": {
        **ACCURACY,
        ("fig3", WIDE, INTERVAL): lambda share, seed: SLOW(share, 0) + luck[seed] + 0.06,
        ("fig3", NARROW, INTERVAL): lambda share, seed: SLOW(share, 0) + luck[seed],
    }}  # fmt: skip
    data = figure_data("fig3", world)
    lost = next(r for r in data.runs if (r.arm, r.column, r.seed) == (WIDE, INTERVAL, 1))
    data.runs[data.runs.index(lost)] = dataclasses.replace(lost, state="failed")
    verdict = next(v for v in claims.verdicts_in(data) if v.claim.id == "wide-clip-faster")
    faster = verdict.findings[0]
    assert (faster.outcome, faster.seeds) == (Outcome.supported, [0, 2])
    assert faster.mean == pytest.approx(0.06)
    assert faster.interval == pytest.approx((0.06, 0.06))


def test_runs_of_a_shared_arm_come_from_any_figure_that_holds_it():
    collapse = claims.verdicts({"fig11": BASE["fig11"]})[1]
    assert (collapse.claim.id, collapse.title) == ("reinforce-collapses", "supported in miniature")


def test_a_figure_judges_only_what_it_shows():
    found = {v.claim.id: v for v in claims.verdicts_in(BASE["fig5"])}
    assert set(found) == {"on-policy-parity", "reinforce-collapses", "data-weighting-holds"}
    assert {v.outcome for v in found.values()} == {Outcome.supported}
    shown = {f.check.column for f in found["reinforce-collapses"].findings}
    assert shown == {INTERVAL}


def test_the_papers_scale_is_not_called_miniature():
    data = dataclasses.replace(BASE["fig5"], scale="paper")
    assert {v.title for v in claims.verdicts_in(data)} == {"supported"}


@pytest.mark.parametrize(
    ("low", "high", "interval", "outcome"),
    [
        (0.05, math.inf, (0.06, 0.2), "supported"),
        (0.05, math.inf, (0.05, 0.2), "not enough data"),  # the end itself is outside
        (0.05, math.inf, (-0.2, 0.05), "not supported"),
        (-math.inf, 0.5, (0.1, 0.4), "supported"),
        (-math.inf, 0.5, (0.5, 0.6), "not supported"),
        (-0.05, 0.05, (-0.04, 0.04), "supported"),
        (-0.05, 0.05, (-0.04, 0.06), "not enough data"),
        (-0.05, 0.05, (-0.2, 0.2), "not enough data"),
        (-0.05, 0.05, (-0.2, -0.05), "not supported"),
    ],
)
def test_range_needs_the_whole_interval(low, high, interval, outcome):
    assert Range(name="", reason="", low=low, high=high).judge(interval).value == outcome


# Definitions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["mini", "paper"])
@pytest.mark.parametrize("name", sweeps.names())
def test_every_check_finds_its_cells_in_the_sweep(name, scale):
    figure = sweeps.load_figure(name, [f"scale={scale}"])
    cells = {(p.label, figure.heading(p)) for p in sweeps.expand(figure, [f"scale={scale}"])}
    for check in (c for claim in claims.CLAIMS for c in claim.checks if name in c.figures):
        for pattern in filter(None, [check.arm, check.against]):
            fits = {c for c in cells if fnmatchcase(c[0], pattern) and c[1] == check.column}
            assert fits, f"{name}: no {pattern} under {check.column}"


def test_claims_are_those_of_the_paper_and_every_threshold_has_a_reason():
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS) == 13
    for claim in claims.CLAIMS:
        assert set(claim.figures) == {name for check in claim.checks for name in check.figures}
        assert all(len(check.range.reason) > 20 for check in claim.checks)
    ranges = {check.range for claim in claims.CLAIMS for check in claim.checks}
    assert len({each.name for each in ranges}) == len(ranges)


# Files and command line --------------------------------------------------------------------------


@pytest.fixture
def fig5_runs(tmp_path, monkeypatch):
    """Figure 5 with finished runs on disk, and a figure without any."""
    data = BASE["fig5"]
    jobs = []
    for number, run in enumerate(data.runs):
        path = write_run(tmp_path / "runs" / str(number), run.rows)
        config = {"seed": run.seed}
        jobs.append(SimpleNamespace(label=run.arm, heading=run.column, config=config, path=path))

    absent = SimpleNamespace(**{**vars(jobs[0]), "path": tmp_path / "none"})

    def composed(name: str, overrides: tuple[str, ...]):
        panel = SimpleNamespace(metric="eval/accuracy", label="accuracy", log=False)
        figure = SimpleNamespace(title=name, caption="", scale="mini", panels=[panel])
        return figure, jobs if name == "fig5" else [absent]

    monkeypatch.setattr(collect, "composed", composed)
    monkeypatch.setattr(sweeps, "names", lambda: ["fig5", "fig6"])
    return tmp_path


def test_a_figures_files_hold_its_claims(fig5_runs, capsys):
    figures_cli.main(["fig5", f"out={fig5_runs}"])
    printed = capsys.readouterr().out
    found = json.loads((fig5_runs / "fig5.json").read_text())["claims"]
    assert [each["claim"] for each in found] == [
        "on-policy-parity", "reinforce-collapses", "data-weighting-holds"
    ]  # fmt: skip
    assert {each["verdict"] for each in found} == {"supported"}
    for each in found:
        assert f"{each['claim']}: supported in miniature" in printed
        assert f"{each['claim']}: supported in miniature" in (fig5_runs / "fig5.txt").read_text()


def test_the_table_is_printed_and_written(fig5_runs, capsys):
    cli.main([f"out={fig5_runs}/claims.json"])
    printed = capsys.readouterr().out
    found = {c["claim"]: c for c in json.loads((fig5_runs / "claims.json").read_text())}
    assert len(found) == 13
    assert all(name in printed for name in found)
    assert all(threshold in printed for threshold in ("collapses", "alike", "stable"))
    parity = found["on-policy-parity"]
    assert (parity["verdict"], parity["scale"]) == ("supported", "mini")
    part = next(p for p in parity["parts"] if p["arms"].startswith("RED-Drop"))
    assert (part["seeds"], part["low"], part["high"]) == ([0, 1, 2], -0.05, 0.05)
    assert part["mean"] == pytest.approx(0)
    assert found["clip-sawtooth"]["reasons"] == ["no finished runs"]
    cli.main([f"out={fig5_runs}/claims.md"])
    text = (fig5_runs / "claims.md").read_text()
    assert "| on-policy-parity | supported in miniature | 3 | fig5 |" in text
    assert "two standard errors" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig5"], "fig5: is not understood; allowed: runs=FOLDER,…, out=FILE, KEY=VALUE"),
        (["out=claims.txt"], "out=claims.txt: the name must end in .json or .md"),
        (["runs=/nowhere"], "runs=/nowhere: no such folder"),
        (["out=/nowhere/claims.md"], "out=/nowhere/claims.md: cannot be written (No such file"),
    ],
)
def test_bad_input_is_one_line(fig5_runs, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    assert message in error
