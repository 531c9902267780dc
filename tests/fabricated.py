"""Runs made up for tests of what reads them: rows, run folders, the runs of a figure."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas
import yaml

from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.table import FOUND, LABELS, STATE
from rec_experiments.sweeps import Panel
from rec_experiments.sweeps.manifest import Line

STEPS = 40
COLUMNS = ["sync_interval = 20", "offline"]
COLLAPSING, STABLE, ABSENT = "REINFORCE", "REC-OneSide-NoIS (0.2)", "GRPO"
ON_POLICY = {"interval": 1, "offset": 0}
PERIOD = 20  # of the synchronisation
PANELS = [
    Panel(metric="eval/accuracy", label="evaluation accuracy", log=False),
    Panel(metric="train/reward", label="training reward", log=False),
    Panel(metric="train/clip_fraction", label="clipped share of tokens", log=True),
]


def saw(step: int, height: float, period: int = PERIOD) -> float:
    """A tooth of `height` from each synchronisation to the next, the first at step 1."""
    return height * ((step - 1) % period) / period


def rows_of(arm: str, seed: int, steps: int = STEPS) -> list[dict]:
    """A run that learns, or learns and collapses; evaluated every 10 steps, clipped in a saw."""
    rng = np.random.default_rng(seed)
    rows: list[dict] = []
    for step in range(steps + 1):
        level = 0.3 + 0.5 * step / STEPS
        if arm == COLLAPSING and step > STEPS // 2:
            level = max(0.0, 0.6 - 0.05 * (step - STEPS // 2))
        row: dict = {"step": step}
        if step:
            row["train/reward"] = level + 0.02 * float(rng.normal())
            row["train/clip_fraction"] = 0.0 if arm == COLLAPSING else saw(step, 0.02)
        if step % 10 == 0:
            row["eval/accuracy"] = level + 0.01 * seed
        rows.append(row)
    return rows


def write_run(
    path: Path,
    rows: list[dict],
    state: str = "done",
    config: dict | None = None,
    command: list[str] | None = None,
    **status: str,
) -> Path:
    """A run folder; config: of a method that does not exist, unless it is given."""
    path.mkdir(parents=True)
    config = config or {"algo": {"name": "fabricated"}, "sync": ON_POLICY, "seed": 0, "steps": 40}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    write_lines(path / "metrics.jsonl", rows)
    (path / "status.json").write_text(json.dumps({"state": state, **status}))
    if command:
        (path / "provenance.json").write_text(json.dumps({"command": command, "release": 12}))
    return path


def write_lines(file: Path, rows: list[dict]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_manifest(folder: Path, lines: list[list], name: str = "fig3") -> None:
    """The manifest of a sweep; lines: as `Line`."""
    (folder / "manifests").mkdir(exist_ok=True)
    table = pandas.DataFrame(lines, columns=Line._fields)
    table.to_csv(folder / "manifests" / f"{name}.csv", index=False)


def sample(step: int, response: str, prompt: str = "1+1=", answer: str = "2") -> dict:
    return {
        "step": step, "prompt": prompt, "response": response, "answer": answer, "reward": 0.0,
    }  # fmt: skip


def figure_of(runs: list[tuple], **about) -> FigureRuns:
    """A figure whose runs are arm, column, seed, state, rows and, possibly, overrides."""
    found, steps = [], []
    for number, (arm, column, seed, state, rows, *overrides) in enumerate(runs):
        labels = dict(zip(LABELS, ("figx", arm, column, seed), strict=True))
        run = {**labels, "run": f"run{number}", "state": state, "release": 12}
        step = rows[-1]["step"] if rows else 0
        found.append({**run, "path": "", "overrides": "".join(overrides), "step": step, "note": ""})
        steps += [{**run, **row} for row in rows]
    runs = pandas.DataFrame(found, columns=[*FOUND, *STATE])
    usual = {"name": "figx", "runs": runs, "steps": pandas.DataFrame(steps)}
    return FigureRuns(**{**usual, **about})


def figure() -> FigureRuns:
    """Two arms, two columns, three seeds: one run partial, one missing; a third arm has none."""
    runs = []
    for arm, column, seed in itertools.product((COLLAPSING, STABLE), COLUMNS, range(3)):
        state, steps = "done", STEPS
        if (arm, column, seed) == (STABLE, "offline", 1):
            state, steps = "failed", 17
        rows = rows_of(arm, seed, steps)
        if (arm, column, seed) == (STABLE, "offline", 2):
            state, rows = "missing", []
        runs.append((arm, column, seed, state, rows))
    return figure_of(
        [*runs, (ABSENT, COLUMNS[0], 0, "missing", [])],
        title="A figure", caption="Synthetic runs.", scale="mini", panels=PANELS,
    )  # fmt: skip
