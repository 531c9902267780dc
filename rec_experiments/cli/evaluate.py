"""Answers the held-out problems and prints the scores: accuracy with its 95 % interval over
problems, and pass@k if there are several responses to each. For two models it also prints the
difference, paired by problem. With the keys of the run, a checkpoint scores exactly as the run
reported at that step."""

from typing import Annotated

from cyclopts import Parameter

from rec_experiments.cli.parser import names_and_overrides, number
from rec_experiments.common.errors import UserError


def main(
    *words: Annotated[
        str,
        Parameter(
            "RUN|MODEL|KEY=VALUE",
            help="one or two of: a run folder, a transformers folder, a model's name on the hub; "
            "and keys of the run: eval_samples=4 dataset.path=FOLDER …; a model that is not a run "
            "needs dataset=NAME, and takes other choices too (sampler=vllm_beside)",
        ),
    ],
    step: Annotated[
        int | None,
        number(
            "which checkpoint of a run; it also selects the random draws; by default the newest", 0
        ),
    ] = None,
) -> None:
    from rec_experiments.runs.evaluation import difference, evaluate  # imports torch

    models, overrides = names_and_overrides(words)
    if not 1 <= len(models) <= 2:
        raise UserError(f"evaluate: takes one or two models, not {len(models)}")
    found = [evaluate(model, step, overrides) for model in models]
    for model, scores in zip(models, found, strict=True):
        if len(found) > 1:
            print(model)
        for name, value in scores.metrics.items():
            print(f"{name:24} {value:.4f}")
        interval = f"{scores.low:.4f} to {scores.high:.4f}, {len(scores.means)} problems"
        print(f"{'95 % of eval/accuracy':24} {interval}")
    if len(found) > 1:
        mean, low, high = difference(*found)
        print(f"{'first − second':24} {mean:+.4f}, 95 % {low:+.4f} to {high:+.4f}")
