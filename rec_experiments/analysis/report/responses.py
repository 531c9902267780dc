"""The part of the page with responses: what its script reads, and the empty pickers."""

import math
from collections.abc import Sequence
from typing import Any

from rec_experiments.analysis.report.contents import Evaluation, Place, RunPart
from rec_experiments.analysis.report.html import scroll

SAMPLE_CHARACTERS = 1500  # of a text among the samples, so that the page stays small
NO_FIGURE = "no figure"


def section(runs: Sequence[RunPart]) -> str:
    """The pickers, which page.js fills."""
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


def script_data(runs: Sequence[RunPart]) -> dict[str, Any]:
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
            {key: _shown(value) for key, value in row.items()} for row in evaluation.responses
        ],
    }


def _shown(value: Any) -> Any:
    """A value of samples.jsonl, as JSON can have it."""
    if isinstance(value, int | float | None) and math.isfinite(value or 0):
        return value
    return cut(str(value))


def cut(text: str) -> str:
    """The text's beginning, with a word on what was left out."""
    more = len(text) - SAMPLE_CHARACTERS
    return f"{text[:SAMPLE_CHARACTERS]}… ({more} more characters)" if more > 0 else text
