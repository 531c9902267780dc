"""The page as one string of HTML.

Everything that comes from runs is escaped, numbers too, since their files can contain anything. The
page's content security policy allows no script but its own.
"""

import base64
import json
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.claims.tables import (
    HEAD,
    READING,
    cells,
    remarks,
)
from rec_experiments.analysis.claims.verdict import Verdict
from rec_experiments.analysis.report import curves
from rec_experiments.analysis.report.contents import Contents, FigurePart, Place, RunPart
from rec_experiments.analysis.report.html import (
    details,
    paragraphs,
    policy_hash,
    script_json,
    scroll,
    sortable,
    table,
    td,
    text_details,
)

FOLDER = Path(__file__).parent
SCRIPTS = ("page.js", "curves.js", "explore.js")  # concatenated in this order
TONES = {
    Outcome.supported: "good",
    Outcome.contradicted: "bad",
    Outcome.no_difference: "bad",
    Outcome.premise_not_met: "quiet",
    Outcome.undecided: "open",
    Outcome.not_run: "quiet",
}
STATE_TONES = {"done": "good", "failed": "bad", "running": "open"}
FILTERS = ("figure", "algorithm", "schedule", "seed", "state")
RUN_HEAD = (
    "run", "algorithm", "schedule", "seed", "state", "step", "curve", "accuracy", "reward", "KL",
    "seconds", "figures",
)  # fmt: skip
NO_FIGURE = "no figure"
SMOOTHING = (0, 5, 10, 20, 50, 100)  # steps of a running mean
SAMPLE_CHARACTERS = 1500  # of a prompt or response, to keep the page small


def render(contents: Contents, written: str, home: Path) -> str:
    """The page. written: date and time. home: the folder of the page."""
    done = sum(run.state == "done" for run in contents.runs)
    sections = {
        "Claims": _claims(contents.claims),
        "Runs": _runs(contents, home),
        "Curves": _curves(contents.runs),
        "Figures": _figures(contents),
        "Differences between arms": _differences(contents.figures),
        "Responses": _responses(contents.runs),
    }
    shown = {name: body for name, body in sections.items() if body}
    style, script = _file("page.css"), "\n\n".join(map(_file, SCRIPTS))
    return Template(_file("page.html")).substitute(
        style=style,
        style_hash=policy_hash(style),
        script=script,
        script_hash=policy_hash(script),
        subtitle=escape(f"{done} of {len(contents.runs)} runs have finished. Written {written}."),
        navigation="".join(f'<a href="#{_id(name)}">{name}</a>' for name in shown),
        body="\n".join(
            f'<section id="{_id(name)}"><h2>{name}</h2>{body}</section>'
            for name, body in shown.items()
        ),
        samples=script_json(samples_data(contents.runs)),
        explorer=script_json(curves.script_data(contents, home)),
    )


def _claims(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    rows = []
    for verdict in verdicts:
        name = verdict.claim.id
        first, *others = remarks(verdict)
        parts = table(HEAD, [[td(cell) for cell in cells(each)] for each in verdict.findings])
        reasons = details("Endpoints and reasons", paragraphs(others) + scroll(parts, name))
        rows.append(
            [
                td(name, "key"),
                td(verdict.title, f"short {TONES[verdict.outcome]}"),
                f'<td class="words">{escape(first)}{reasons}</td>',
                td(verdict.seeds, "number"),
                td(", ".join(verdict.claim.figures)),
            ]
        )
    counts = Counter(verdict.outcome for verdict in verdicts)
    summary = "".join(
        f'<span class="{tone}">{counts[outcome]} {outcome.value}</span>'
        for outcome, tone in TONES.items()
        if counts[outcome]
    )
    head = ["claim", "verdict", "in words", "seeds", "figures"]
    return (
        f'<p class="verdicts">{summary}</p>'
        + details(f"All {len(verdicts)} claims", scroll(table(head, rows), "Claims", "cards"))
        + details("How to read the verdicts", paragraphs(f"{line}." for line in READING))
    )


def _runs(contents: Contents, home: Path) -> str:
    left_out = paragraphs(f"Left out: {reason}." for reason in contents.left_out)
    if not contents.runs:
        return left_out
    values = [_filter_values(run) for run in contents.runs]
    controls = "".join(
        f'<label>{key}<select data-key="{key}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in _options(key, values))
        + "</select></label>"
        for key in FILTERS
    )
    body = "".join(
        f"<tr{_attributes(filters)}>{''.join(_run_cells(run, home))}</tr>"
        for run, filters in zip(contents.runs, values, strict=True)
    )
    head = "".join(
        f'<th scope="col"><button type="button">{name}</button></th>' for name in RUN_HEAD
    )
    listing = (
        '<table id="run-table"><caption>Accuracy, reward, KL: mean of the last points of a run, as '
        f"in the figures' statistics.</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
    return (
        f'<form class="controls" id="run-filters">{controls}'
        '<label>text<input id="filter-text" type="search" placeholder="words"></label>'
        '<button type="button" id="run-csv">CSV</button></form>'
        '<p class="quiet" id="run-count" role="status"></p>'
        f"{scroll(listing, 'Runs', 'tall')}{left_out}"
    )


def _run_cells(run: RunPart, home: Path) -> list[str]:
    link = f'<p><a href="{escape(curves.folder_link(run, home))}">run folder</a></p>'
    command = f"<code>{escape(shlex.join(run.command))}</code>"
    figures = dict.fromkeys(place.figure for place in run.places)
    return [
        f'<td data-sort="{escape(run.name)}">'
        f"{details(run.name, paragraphs([run.reason]) + link + command)}</td>",
        sortable(run.algorithm, "short"),
        sortable(run.schedule, "short"),
        sortable(run.seed, "number"),
        sortable(run.state, STATE_TONES.get(run.state, "")),
        sortable(run.step, "number", f"{run.step}/{run.steps}"),
        f'<td data-sort="{"" if run.final is None else run.final}">'
        f"{sparkline(run.accuracies)}</td>",
        *(sortable(value, "number") for value in (run.final, run.reward, run.kl)),
        sortable(run.seconds, "number", f"{run.seconds:.0f}"),
        sortable(", ".join(figures)),
    ]


def _filter_values(run: RunPart) -> dict[str, list[str]]:
    return {
        "figure": list(dict.fromkeys(place.figure for place in run.places)) or [NO_FIGURE],
        "algorithm": [run.algorithm],
        "schedule": [run.schedule],
        "seed": [str(run.seed)],
        "state": [run.state],
    }


def _options(key: str, values: Sequence[dict[str, list[str]]]) -> list[str]:
    found = {each for value in values for each in value[key]}
    return sorted(
        found, key=lambda text: (len(text), text) if key in ("seed", "figure") else (0, text)
    )


def _attributes(values: dict[str, list[str]]) -> str:
    return "".join(f' data-{key}="{escape(json.dumps(each))}"' for key, each in values.items())


def sparkline(values: Sequence[float]) -> str:
    """A small curve of values in [0, 1]."""
    if not values:
        return ""
    width, height, edge = 84, 22, 2
    gap = (width - 2 * edge) / max(1, len(values) - 1)
    heights = [(height - 2 * edge) * min(1.0, max(0.0, value)) for value in values]
    points = " ".join(
        f"{edge + gap * i:.1f},{height - edge - up:.1f}" for i, up in enumerate(heights)
    )
    label = f"accuracy from {values[0]:.2f} to {values[-1]:.2f}"
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f'<polyline points="{points}"/></svg>'
    )


def _curves(runs: Sequence[RunPart]) -> str:
    """Empty controls, which explore.js fills."""
    if not runs:
        return ""
    selects = "".join(
        f'<label>{label}<select id="explore-{name}"></select></label>'
        for name, label in (("scope", "figure"), ("y", "y axis"), ("x", "x axis"))
    )
    switches = "".join(
        f'<label class="switch"><input type="checkbox" id="explore-{name}"{checked}>{label}</label>'
        for name, label, checked in (
            ("log-y", "log y axis", ""),
            ("log-x", "log x axis", ""),
            ("runs", "single runs", " checked"),
            ("means", "means and intervals", " checked"),
        )
    )
    smooth = "".join(
        f'<option value="{width}">{f"over {width} steps" if width else "none"}</option>'
        for width in SMOOTHING
    )
    groups = "".join(
        f'<fieldset id="explore-{name}"><legend>{name}</legend></fieldset>'
        for name in ("arms", "columns", "seeds")
    )
    return (
        "<noscript><p>This section needs JavaScript. The numbers are also under each figure and in "
        "the table of runs.</p></noscript>"
        "<p>Point at a curve to read its values, and click to see its run: folder, configuration, "
        "responses. With the keyboard, use the arrow keys and Enter. Drag over a region to zoom "
        "in, and double-click to see everything. The address of the page keeps what you chose.</p>"
        f'<form class="controls" id="explore">{selects}'
        f'<label>running mean<select id="explore-smooth">{smooth}</select></label>{switches}'
        '<button type="button" id="explore-whole" hidden>zoom out</button>'
        f'<button type="button" id="explore-csv">CSV</button>{groups}</form>'
        '<div id="explore-panels"></div><p class="quiet" id="explore-reading"></p>'
        '<div id="explore-run" aria-live="polite"></div>'
        + details("Last point of each line", scroll("", "Last points", "tall", "explore-table"))
    )


def _figures(contents: Contents) -> str:
    parts = [_figure(figure) for figure in contents.figures]
    if not (parts or contents.without_runs or contents.few_runs):
        return ""
    without = [
        details(f"{what} ({len(found)})", paragraphs([f"{', '.join(found)}."]))
        for what, found in (
            ("Too few runs to be drawn", contents.few_runs),
            ("No runs yet", contents.without_runs),
        )
        if found
    ]
    hint = ["Click a figure to see it in full size."] * bool(parts)
    return paragraphs(hint, "quiet") + "".join(parts) + "".join(without)


def _figure(figure: FigurePart) -> str:
    source = base64.b64encode(figure.png).decode()
    body = (
        f'<div class="scroll figure"><button type="button" aria-pressed="false" '
        f'title="Full size"><img src="data:image/png;base64,{source}" '
        f'alt="{escape(figure.title)}: the numbers follow as text"></button></div>'
        + paragraphs([figure.caption], "quiet")
        + paragraphs(figure.notes)
        + text_details(f"Numbers of {figure.name}", figure.summary, figure.title)
    )
    if figure.regime:
        body += text_details(f"Regime of {figure.name}", figure.regime, figure.title)
    return f"<h3>{escape(figure.title)}</h3>{body}"


def _differences(figures: Sequence[FigurePart]) -> str:
    parts = []
    for figure in figures:
        if figure.differences and figure.differences.table:
            rows = [
                [
                    f'<th scope="row">{escape(key)}</th>',
                    *(td(value or "–", "short") for value in values),
                ]
                for key, *values in figure.differences.table
            ]
            listing = table(["key", *figure.differences.arms], rows)
            parts.append(details(figure.title, scroll(listing, f"Differences, {figure.title}")))
    intro = (
        "The keys of the configuration whose values differ between the arms of a figure at the "
        "same schedule and seed."
    )
    return paragraphs([intro]) + "".join(parts) if parts else ""


def _responses(runs: Sequence[RunPart]) -> str:
    """Empty pickers, which page.js fills."""
    if not any(run.samples for run in runs):
        return ""
    pickers = "".join(
        f"<label>{name}<select></select></label>" for name in ("figure", "arm", "column", "seed")
    )
    return (
        "<p>Responses to the same held-out problems at the first, a middle and the last "
        "evaluation of a run.</p>"
        f'<form class="controls" id="sample-pickers">{pickers}</form>'
        f"{scroll('<noscript>Needs JavaScript.</noscript>', 'Responses', name='sample-view')}"
    )


def samples_data(runs: Sequence[RunPart]) -> dict[str, Any]:
    """The responses for page.js. places: rows of figure, arm, column, seed and run."""
    return {
        "places": [
            [place.figure, place.arm, place.column, f"seed {run.seed}", number]
            for number, run in enumerate(runs)
            if run.samples
            for place in run.places
            or [Place(figure=NO_FIGURE, arm=run.method, column=run.schedule)]
        ],
        "runs": [
            [
                {
                    "step": each.step,
                    "responses": [
                        {key: _for_json(value) for key, value in row.items()}
                        for row in each.responses
                    ],
                }
                for each in run.samples
            ]
            for run in runs
        ],
    }


def _for_json(value: Any) -> Any:
    if isinstance(value, int | float | None) and math.isfinite(value or 0):
        return value
    return shortened(str(value))


def shortened(text: str) -> str:
    """The beginning of a long text, with the number of characters left out."""
    more = len(text) - SAMPLE_CHARACTERS
    return f"{text[:SAMPLE_CHARACTERS]}… ({more} more characters)" if more > 0 else text


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8").strip()
