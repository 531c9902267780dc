"""The page as one string of HTML: contents in, text out, nothing read but the template's files.

All that comes from runs is escaped, numbers too, since a file of theirs can hold anything. The
page's policy lets no script run but its own.
"""

import base64
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.claims.tables import (
    HEAD,
    READING,
    VERDICT_HEAD,
    cells,
    heading,
    remarks,
)
from rec_experiments.analysis.claims.verdict import Verdict
from rec_experiments.analysis.report import explorer, responses
from rec_experiments.analysis.report.contents import Contents, RunPart
from rec_experiments.analysis.report.figure_parts import Differences, FigurePart
from rec_experiments.analysis.report.html import (
    collapsed,
    data_attributes,
    plain,
    policy_hash,
    script_json,
    scroll,
    sortable,
    table,
    td,
)

FOLDER = Path(__file__).parent
SCRIPTS = ("page.js", "curves.js", "explore.js")  # in this order, as one
COMMIT_CHARACTERS = 12
TONES = {
    Outcome.supported: "good",
    Outcome.contradicted: "bad",
    Outcome.undecided: "open",
    Outcome.not_run: "quiet",
}
STATE_TONES = {"done": "good", "failed": "bad", "running": "open"}
FILTERS = ("figure", "algorithm", "schedule", "seed", "state")


def render(contents: Contents, written: str, home: Path) -> str:
    """The whole page. written: when, in words. home: the folder that the page will lie in."""
    done = sum(run.state == "done" for run in contents.runs)
    sections = {
        "Figures": _figures(contents),
        "Curves": explorer.section(contents.runs),
        "Claims": _claims(contents.claims),
        "Runs": _runs(contents.runs, home) + _left_out(contents.left_out),
        "Differences between arms": _differences(contents.figures),
        "Responses": responses.section(contents.runs),
        "Provenance": _provenance(contents),
    }
    shown = {name: body for name, body in sections.items() if body}
    style, script = _file("page.css"), "\n\n".join(map(_file, SCRIPTS))
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
        samples=script_json(responses.script_data(contents.runs)),
        explorer=script_json(explorer.script_data(contents, home)),
    )


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
        + collapsed(f"Numbers of {figure.name}", figure.summary, figure.title)
        + (collapsed(f"Regime of {figure.name}", figure.regime, figure.title) * bool(figure.regime))
    )


def _claims(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    rows = []
    for verdict in verdicts:
        name, said, seeds, figures = heading(verdict)
        first, *others = remarks(verdict)
        parts = table(HEAD, [[td(cell) for cell in cells(each)] for each in verdict.findings])
        rows.append(
            [
                td(name, "key"),
                td(said, f"short {TONES[verdict.outcome]}"),
                f'<td class="words">{escape(first)}<details><summary>Parts and reasons</summary>'
                + "".join(f"<p>{escape(line)}</p>" for line in others)
                + f"{scroll(parts, name)}</details></td>",
                td(seeds, "number"),
                td(figures),
            ]
        )
    head = [*VERDICT_HEAD[:2], "in words", *VERDICT_HEAD[2:]]
    reading = "".join(f"<p>{escape(line)}.</p>" for line in READING)
    return (
        scroll(table(head, rows), "Claims")
        + f"<details><summary>How to read it</summary>{reading}</details>"
    )


def _runs(runs: Sequence[RunPart], home: Path) -> str:
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
        f"<tr{data_attributes(filters)}>{''.join(_run_cells(run, home))}</tr>"
        for run, filters in zip(runs, values, strict=True)
    )
    head = "".join(
        f'<th scope="col"><button type="button">{name}</button></th>' for name in RUN_HEAD
    )
    listing = (
        f'<table id="run-table"><caption>Accuracy, reward, KL: mean of the last points of a run, '
        f"as in the figures' statistics.</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
    return (
        f'<form class="controls" id="run-filters">{controls}'
        '<label>text<input id="filter-text" type="search" placeholder="words"></label></form>'
        f'<p class="quiet" id="run-count" role="status"></p>{scroll(listing, "Runs", "tall")}'
    )


def _left_out(reasons: Sequence[str]) -> str:
    return "".join(f"<p>Left out: {escape(reason)}.</p>" for reason in reasons)


RUN_HEAD = (
    "run", "algorithm", "schedule", "seed", "state", "step", "curve", "accuracy", "reward", "KL",
    "seconds", "figures", "release",
)  # fmt: skip


def _run_cells(run: RunPart, home: Path) -> list[str]:
    reason = f"<p>{escape(run.reason)}</p>" if run.reason else ""
    figures = [f"{place.figure}: {place.arm}" for place in run.places]
    return [
        f'<td data-sort="{escape(run.name)}"><details><summary>{escape(run.name)}</summary>'
        f'{reason}<p><a href="{escape(explorer.folder_link(run, home))}">run folder</a>, '
        f"environment {run.environment + 1}</p>"
        f"<code>{escape(shlex.join(run.command))}</code></details></td>",
        sortable(run.algorithm, "short"),
        sortable(run.schedule, "short"),
        sortable(run.seed, "number"),
        sortable(run.state, STATE_TONES.get(run.state, "")),
        sortable(run.step, "number", f"{run.step}/{run.steps}"),
        f'<td data-sort="{escape(plain(run.final))}">{sparkline(run.accuracies)}</td>',
        *(sortable(value, "number") for value in (run.final, run.reward, run.kl)),
        sortable(run.seconds, "number", f"{run.seconds:.0f}"),
        sortable("; ".join(dict.fromkeys(figures)), "words"),
        sortable(run.releases, ""),
    ]


def _filter_values(run: RunPart) -> dict[str, list[str]]:
    return {
        "figure": list(dict.fromkeys(place.figure for place in run.places))
        or [responses.NO_FIGURE],
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
        [f'<th scope="row">{escape(key)}</th>', *(td(value or "–", "short") for value in values)]
        for key, *values in found.table
    ]
    return scroll(table(["key", *found.arms], rows), f"Differences, {title}")


def _provenance(contents: Contents) -> str:
    head = ["environment", "runs", "commit", "uncommitted changes", "device", "system", "versions"]
    rows = [
        [
            td(str(number + 1), "number"),
            td(str(sum(run.environment == number for run in contents.runs)), "number"),
            f'<td class="key"><code>{escape(environment.commit[:COMMIT_CHARACTERS])}</code></td>',
            td(f"yes, digest {environment.diff}" if environment.diff else "none"),
            td(f"{environment.device}, CPU threads: {environment.threads}", "words"),
            td(environment.system, "words"),
            td(", ".join(" ".join(each) for each in environment.versions), "words"),
        ]
        for number, environment in enumerate(contents.environments)
    ]
    intro = "<p>Each run names its environment and its command; open it in the table of runs.</p>"
    return intro + scroll(table(head, rows), "Provenance") if rows else ""


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8").strip()
