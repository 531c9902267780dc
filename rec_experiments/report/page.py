"""The page as one string of HTML: contents in, text out, nothing read but the template's files.

All that comes from runs is escaped, numbers too, since a file of theirs can hold anything. The
page's policy lets no script run but its own.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rec_experiments.claims.decision import Outcome
from rec_experiments.claims.engine import Verdict
from rec_experiments.claims.tables import HEAD, READING, VERDICT_HEAD, cells, heading, remarks
from rec_experiments.report.contents import (
    Contents,
    Differences,
    Evaluation,
    FigurePart,
    Place,
    RunPart,
)

FOLDER = Path(__file__).parent
SAMPLE_CHARACTERS = 1500  # of a text among the samples, so that the page stays small
COMMIT_CHARACTERS = 12
NO_FIGURE = "no figure"
TONES = {
    Outcome.supported: "good",
    Outcome.contradicted: "bad",
    Outcome.undecided: "open",
    Outcome.not_run: "quiet",
}
STATE_TONES = {"done": "good", "failed": "bad", "running": "open"}
FILTERS = ("figure", "algorithm", "schedule", "seed", "state")


def render(contents: Contents, written: str) -> str:
    """The whole page. written: when, in words."""
    done = sum(run.state == "done" for run in contents.runs)
    sections = {
        "Figures": _figures(contents),
        "Claims": _claims(contents.claims),
        "Runs": _runs(contents.runs) + _left_out(contents.left_out),
        "Differences between arms": _differences(contents.figures),
        "Responses": _samples(contents.runs),
        "Provenance": _provenance(contents),
    }
    shown = {name: body for name, body in sections.items() if body}
    style, script = _file("page.css"), _file("page.js")
    return Template(_file("page.html")).substitute(
        style=style,
        style_hash=policy_hash(style),
        script=script,
        script_hash=policy_hash(script),
        subtitle=escape(f"{done} of {len(contents.runs)} runs are done. Written {written}."),
        navigation="".join(f'<a href="#{_id(name)}">{name}</a>' for name in shown),
        body="\n".join(
            f'<section id="{_id(name)}"><h2>{name}</h2>{body}</section>'
            for name, body in shown.items()
        ),
        samples=script_json(sample_data(contents.runs)),
    )


def policy_hash(text: str) -> str:
    """By which the page's policy knows its own style or script, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def sample_data(runs: Sequence[RunPart]) -> dict[str, Any]:
    """What the samples' script reads: places (figure, arm, column, seed, run) and texts, cut."""
    return {
        "places": [
            [place.figure, place.arm, place.column, f"seed {run.seed}", number]
            for number, run in enumerate(runs)
            if run.samples
            for place in run.places or [Place(figure=NO_FIGURE, arm=run.name, column=run.schedule)]
        ],
        "runs": [[_cut_evaluation(each) for each in run.samples] for run in runs],
    }


def _cut_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "step": evaluation.step,
        "responses": [
            {key: cut(value) if isinstance(value, str) else value for key, value in row.items()}
            for row in evaluation.responses
        ],
    }


def cut(text: str) -> str:
    """The text's beginning, with a word on what was left out."""
    more = len(text) - SAMPLE_CHARACTERS
    return f"{text[:SAMPLE_CHARACTERS]}… ({more} more characters)" if more > 0 else text


def _figures(contents: Contents) -> str:
    parts = [_figure(figure) for figure in contents.figures]
    if contents.without_runs:
        names = ", ".join(contents.without_runs)
        parts.append(f'<p class="quiet">No run yet: {escape(names)}.</p>')
    return '<p class="quiet">A click shows a figure in full size.</p>' + "".join(parts)


def _figure(figure: FigurePart) -> str:
    source = base64.b64encode(figure.png).decode()
    notes = "".join(f"<p>{escape(note)}</p>" for note in figure.notes)
    return (
        f"<h3>{escape(figure.title)}</h3>"
        f'<div class="scroll figure"><button type="button" aria-pressed="false" '
        f'title="Full size"><img src="data:image/png;base64,{source}" '
        f'alt="{escape(figure.title)}: the numbers follow as text"></button></div>{notes}'
        + _collapsed(f"Numbers of {figure.name}", figure.summary, figure.title)
        + (
            _collapsed(f"Regime of {figure.name}", figure.regime, figure.title)
            * bool(figure.regime)
        )
    )


def _collapsed(summary: str, text: str, title: str) -> str:
    """Text that opens on a click."""
    body = _scroll(f"<pre>{escape(text)}</pre>", title)
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def _claims(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    rows = []
    for verdict in verdicts:
        name, said, seeds, figures = heading(verdict)
        first, *others = remarks(verdict)
        parts = _table(HEAD, [[_td(cell) for cell in cells(each)] for each in verdict.findings])
        rows.append(
            [
                _td(name, "key"),
                _td(said, f"short {TONES[verdict.outcome]}"),
                f'<td class="words">{escape(first)}<details><summary>Parts and reasons</summary>'
                + "".join(f"<p>{escape(line)}</p>" for line in others)
                + f"{_scroll(parts, name)}</details></td>",
                _td(seeds, "number"),
                _td(figures),
            ]
        )
    head = [*VERDICT_HEAD[:2], "in words", *VERDICT_HEAD[2:]]
    reading = "".join(f"<p>{escape(line)}.</p>" for line in READING)
    return (
        _scroll(_table(head, rows), "Claims")
        + f"<details><summary>How to read it</summary>{reading}</details>"
    )


def _runs(runs: Sequence[RunPart]) -> str:
    if not runs:
        return ""
    values = [_filter_values(run) for run in runs]
    controls = "".join(
        f'<label>{key}<select data-key="{key}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in _options(key, values))
        + "</select></label>"
        for key in FILTERS
    )
    body = "".join(
        f"<tr{_data(filters)}>{''.join(_run_cells(run))}</tr>"
        for run, filters in zip(runs, values, strict=True)
    )
    head = "".join(
        f'<th scope="col"><button type="button">{name}</button></th>' for name in RUN_HEAD
    )
    table = (
        f'<table id="run-table"><caption>Accuracy, reward, KL: mean of the last points of a run, '
        f"as in the figures' statistics.</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
    return (
        f'<form class="controls" id="run-filters">{controls}'
        '<label>text<input id="filter-text" type="search" placeholder="words"></label></form>'
        f'<p class="quiet" id="run-count" role="status"></p>{_scroll(table, "Runs", "tall")}'
    )


def _left_out(reasons: Sequence[str]) -> str:
    return "".join(f"<p>Left out: {escape(reason)}.</p>" for reason in reasons)


RUN_HEAD = (
    "run", "algorithm", "schedule", "seed", "state", "step", "curve", "accuracy", "reward", "KL",
    "seconds", "figures", "code",
)  # fmt: skip


def _run_cells(run: RunPart) -> list[str]:
    reason = f"<p>{escape(run.reason)}</p>" if run.reason else ""
    figures = [f"{place.figure}: {place.arm}" for place in run.places]
    return [
        f'<td data-sort="{escape(run.name)}"><details><summary>{escape(run.name)}</summary>'
        f"{reason}<p>environment {run.environment + 1}</p>"
        f"<code>{escape(shlex.join(run.command))}</code></details></td>",
        _sortable(run.algorithm, "short"),
        _sortable(run.schedule, "short"),
        _sortable(run.seed, "number"),
        _sortable(run.state, STATE_TONES.get(run.state, "")),
        _sortable(run.step, "number", f"{run.step}/{run.steps}"),
        f'<td data-sort="{escape(_plain(run.final))}">{sparkline(run.accuracies)}</td>',
        *(_sortable(value, "number") for value in (run.final, run.reward, run.kl)),
        _sortable(run.seconds, "number", f"{run.seconds:.0f}"),
        _sortable("; ".join(dict.fromkeys(figures)), ""),
        _sortable(run.made_by or "this code", ""),
    ]


def _filter_values(run: RunPart) -> dict[str, list[str]]:
    return {
        "figure": list(dict.fromkeys(place.figure for place in run.places)) or [NO_FIGURE],
        "algorithm": [run.algorithm],
        "schedule": [run.schedule],
        "seed": [str(run.seed)],
        "state": [run.state],
    }


def _options(key: str, values: Iterable[dict[str, list[str]]]) -> list[str]:
    found = {each for value in values for each in value[key]}
    return sorted(
        found, key=lambda text: (len(text), text) if key in ("seed", "figure") else (0, text)
    )


def sparkline(values: Sequence[float]) -> str:
    """Values in [0, 1] as a small picture."""
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


def _differences(figures: Sequence[FigurePart]) -> str:
    parts = [
        f"<details open><summary>{escape(figure.title)}</summary>"
        f"{_difference_table(figure.differences, figure.title)}</details>"
        for figure in figures
        if figure.differences
    ]
    intro = (
        "<p>Keys of the configuration whose values differ between the arms of a figure, compared "
        "at the same schedule and seed. All other keys are equal.</p>"
    )
    return intro + "".join(parts) if parts else ""


def _difference_table(found: Differences, title: str) -> str:
    if not found.table:
        return "<p>The runs at hand do not differ.</p>"
    rows = [
        [f'<th scope="row">{escape(key)}</th>', *(_td(value or "–", "short") for value in values)]
        for key, *values in found.table
    ]
    return _scroll(_table(["key", *found.arms], rows), f"Differences, {title}")


def _samples(runs: Sequence[RunPart]) -> str:
    if not any(run.samples for run in runs):
        return ""
    pickers = "".join(
        f"<label>{name}<select></select></label>" for name in ("figure", "arm", "column", "seed")
    )
    return (
        "<p>Responses to the same held-out problems at the first, a middle and the last "
        "evaluation of a run.</p>"
        f'<form class="controls" id="sample-pickers">{pickers}</form>'
        f"{_scroll('<noscript>Needs JavaScript.</noscript>', 'Responses', name='sample-view')}"
    )


def _provenance(contents: Contents) -> str:
    head = ["environment", "runs", "commit", "uncommitted changes", "device", "system", "versions"]
    rows = [
        [
            _td(str(number + 1), "number"),
            _td(str(sum(run.environment == number for run in contents.runs)), "number"),
            f'<td class="key"><code>{escape(environment.commit[:COMMIT_CHARACTERS])}</code></td>',
            _td(f"yes, digest {environment.diff}" if environment.diff else "none"),
            _td(f"{environment.device}, CPU threads: {environment.threads}", "words"),
            _td(environment.system, "words"),
            _td(", ".join(" ".join(each) for each in environment.versions), "words"),
        ]
        for number, environment in enumerate(contents.environments)
    ]
    intro = "<p>Each run names its environment and its command; open it in the table of runs.</p>"
    return intro + _scroll(_table(head, rows), "Provenance") if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """head: plain text. rows: cells as HTML."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"


def _scroll(inner: str, label: str, kind: str = "", name: str = "") -> str:
    """A frame that scrolls, with the keyboard too."""
    identity = f' id="{name}"' if name else ""
    return (
        f'<div class="{f"scroll {kind}".strip()}"{identity} role="region" tabindex="0" '
        f'aria-label="{escape(label)}">{inner}</div>'
    )


def _td(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _sortable(value: str | int | float | None, kind: str, shown: str | None = None) -> str:
    """shown: the text, where it is not the value's own."""
    if shown is None:
        shown = f"{value:.3f}" if isinstance(value, float) else _plain(value)
    return f'<td class="{kind}" data-sort="{escape(_plain(value))}">{escape(shown)}</td>'


def _plain(value: str | int | float | None) -> str:
    return "" if value is None else str(value)


def _data(values: dict[str, list[str]]) -> str:
    return "".join(f' data-{key}="{escape(json.dumps(each))}"' for key, each in values.items())


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _file(name: str) -> str:
    return (FOLDER / name).read_text().strip()
