"""The part of the page in which curves are explored: what its script reads, and the empty controls
that explore.js fills."""

import os
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rec_experiments.analysis.figures.style import looks
from rec_experiments.analysis.metrics import catalogue
from rec_experiments.analysis.regime.arms import names
from rec_experiments.analysis.report.columns import PASSED
from rec_experiments.analysis.report.contents import Contents, RunPart
from rec_experiments.analysis.report.figure_parts import FigurePart
from rec_experiments.analysis.report.html import scroll
from rec_experiments.analysis.results.aggregate import CONFIDENCE, t_factor
from rec_experiments.config.identity import flat, identity
from rec_experiments.tracking.trackers import schedule_name

LINE_WIDTH = 1.6  # that the dashes of figures are in units of
EVERY_RUN = "all runs"
NOT_COMPARED = ("seed",)  # keys that every picker has


def section(runs: list[RunPart]) -> str:
    """The controls, empty; a page without a script says where the numbers are."""
    if not runs:
        return ""
    selects = "".join(
        f'<label>{label}<select id="{name}"></select></label>'
        for name, label in (
            ("explore-scope", "figure"),
            ("explore-y", "upwards"),
            ("explore-x", "to the right"),
        )
    )
    switches = "".join(
        f'<label class="switch"><input type="checkbox" id="{name}"{checked}>{label}</label>'
        for name, label, checked in (
            ("explore-log-y", "logarithmic upwards", ""),
            ("explore-log-x", "logarithmic to the right", ""),
            ("explore-runs", "single runs", " checked"),
            ("explore-means", "means and intervals", " checked"),
        )
    )
    groups = "".join(
        f'<fieldset id="explore-{name}"><legend>{name}</legend></fieldset>'
        for name in ("arms", "columns", "seeds")
    )
    return (
        "<noscript><p>Needs JavaScript. Without it: the numbers under each figure, and the table "
        "of runs.</p></noscript>"
        "<p>The value under the pointer is shown; a click on it shows its run: folder, "
        "configuration, responses. With the keyboard: arrow keys in a picture, then Enter.</p>"
        f'<form class="controls" id="explore">{selects}{switches}{groups}</form>'
        '<div id="explore-panels"></div><p class="quiet" id="explore-reading"></p>'
        '<div id="explore-run" aria-live="polite"></div>'
        "<details><summary>The last point of each line</summary>"
        f"{scroll('', 'Last points', name='explore-table')}</details>"
    )


def folder_link(run: RunPart, home: Path) -> str:
    """Address of a run's folder from a page in the folder `home`."""
    return "./" + quote(os.path.relpath(run.path, home), errors="replace") + "/"


def script_data(contents: Contents, home: Path) -> dict[str, Any]:
    """What explore.js reads.

    metrics: of each, what it is and the numbers of all runs' rows, one run after another. rows: how
    many each run has. runs: folder, seed, and the keys whose values differ from `usual`, those that
    most runs have. scopes: a figure or all runs, with lines of (arm, column, run). interval: half
    its width for n seeds, in standard deviations.
    """
    runs = contents.runs
    configs = [_texts(run) for run in runs]
    usual = _usual(configs)
    scopes = [_figure(part, runs) for part in contents.figures if part.arms]
    scopes += [_every_run(runs)] * bool(runs)
    return {
        "metrics": _metrics(contents.numbers),
        "rows": [run.rows for run in runs],
        "runs": [
            {
                "name": run.name,
                "folder": folder_link(run, home),
                "seed": str(run.seed),
                "state": run.state,
                "step": f"{run.step}/{run.steps}",
                "differs": {
                    key: config.get(key, "")
                    for key in usual
                    if config.get(key, "") != usual[key] and key not in NOT_COMPARED
                },
            }
            for run, config in zip(runs, configs, strict=True)
        ],
        "usual": usual,
        "scopes": scopes,
        "interval": [
            None,
            None,
            *(t_factor(n, CONFIDENCE) for n in range(2, _most_runs(scopes) + 1)),
        ],
        "confidence": f"{100 * CONFIDENCE:.0f} %",
    }


def _metrics(numbers: dict[str, str]) -> dict[str, dict[str, str]]:
    known = {key: metric for topic in catalogue().values() for key, metric in topic.items()}
    return {
        key: {
            "is": PASSED.get(key) or (known[key].meaning if key in known else ""),
            "unit": known[key].unit if key in known else "",
            "numbers": numbers[key],
        }
        for key in dict.fromkeys([*PASSED, *known, *numbers])
        if key in numbers
    }


def _texts(run: RunPart) -> dict[str, str]:
    return {
        key: "" if value is None else str(value)
        for key, value in flat(identity(run.config)).items()
    }


def _usual(configs: list[dict[str, str]]) -> dict[str, str]:
    """The value of each key that most runs have, the first of several."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return {
        key: Counter(config.get(key, "") for config in configs).most_common(1)[0][0] for key in keys
    }


def _figure(part: FigurePart, runs: list[RunPart]) -> dict[str, Any]:
    lines = [
        [part.arms.index(place.arm), part.columns.index(place.column), number]
        for number, run in enumerate(runs)
        for place in run.places
        if place.figure == part.name
    ]
    return {
        "name": part.name, "columns": part.columns, "arms": _arms(part.arms), "lines": lines,
    }  # fmt: skip


def _most_runs(scopes: list[dict[str, Any]]) -> int:
    """Of one arm in one column."""
    cells = Counter(
        (id(scope), arm, column) for scope in scopes for arm, column, _ in scope["lines"]
    )
    return max(cells.values(), default=0)


def _every_run(runs: list[RunPart]) -> dict[str, Any]:
    labels = names([run.config for run in runs])
    schedules = [schedule_name(run.config["sync"]) for run in runs]
    arms, columns = sorted(set(labels)), sorted(set(schedules))
    lines = [
        [arms.index(label), columns.index(schedule), number]
        for number, (label, schedule) in enumerate(zip(labels, schedules, strict=True))
    ]
    return {"name": EVERY_RUN, "columns": columns, "arms": _arms(arms), "lines": lines}


def _arms(labels: list[str]) -> list[dict[str, Any]]:
    """As figures draw them."""
    return [
        {
            "name": label,
            "color": look.color,
            "dash": [] if look.dash == "-" else [LINE_WIDTH * each for each in look.dash[1]],
        }
        for label, look in looks(labels).items()
    ]
