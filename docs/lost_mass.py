"""On which tokens a policy lost probability: `python docs/lost_mass.py RUN [KEY=VALUE …]`.

The run's initial policy answers the evaluation problems, and the run's last checkpoint scores the
answers. A run with `sync=interval20 steps=20` thus shows the end of one window. Keys of the run may
change, as in `eval_samples=4`.
"""

import contextlib
import math
import sys
from pathlib import Path

import pandas
import torch
from transformers import PreTrainedModel

from rec_experiments.analysis.results.formatting import markdown_table
from rec_experiments.config import schema
from rec_experiments.policy.head import at_target, tempered_logp
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.saved import experiment_of, model_of

SHOWN = 8  # single tokens
LIKELY = 0.9  # probability from which a token was all but certain


def answered(run: Path, overrides: list[str]) -> pandas.DataFrame:
    """A row for each sampled token: its text, whether its answer was right, and its log-probability
    and rank under the initial policy (old) and log-probability under the last one (new)."""
    experiment = experiment_of(run, overrides)
    trainer = prepare(experiment)
    evaluator, old = trainer.evaluator, trainer.model
    with contextlib.closing(evaluator.worker):
        answers = evaluator.answer(old, 0)
    new, _ = model_of(run, experiment, None)
    chat, temperature = evaluator.chat, experiment.sampler.temperature
    rows = []
    for group, response, result in zip(
        answers.groups, answers.responses, answers.results, strict=True
    ):
        prompt = chat.encode(evaluator.problems[group].messages)
        before, ranks = scores(old, prompt, response.tokens, temperature)
        after, _ = scores(new, prompt, response.tokens, temperature)
        texts = [chat.tokenizer.decode([token]) for token in response.tokens]
        right = [result.accuracy == 1] * len(texts)
        rows += list(zip(texts, right, before, ranks, after, response.mask, strict=True))
    table = pandas.DataFrame(rows, columns=["text", "right", "old", "rank", "new", "sampled"])
    return table[table["sampled"]]


@torch.no_grad()
def scores(
    model: PreTrainedModel, prompt: list[int], response: list[int], temperature: float
) -> tuple[list[float], list[int]]:
    """Log-probability in nats and rank (1 is the likeliest) of each token of a response."""
    logits_BTV = model(torch.tensor([prompt + response])).logits[:, len(prompt) - 1 : -1].float()
    logp_BTV = tempered_logp(logits_BTV, temperature)
    logp_BT = at_target(logp_BTV, torch.tensor([response]))
    rank_BT = (logp_BTV > logp_BT[..., None]).sum(-1) + 1
    return logp_BT[0].tolist(), rank_BT[0].tolist()


def kind(text: str) -> str:
    if text.strip().isdigit():
        return "digits"
    return "words" if any(letter.isalpha() for letter in text) else "signs and spaces"


def line(name: str, part: pandas.DataFrame, whole: pandas.DataFrame) -> list[str]:
    moved = part["new"] - part["old"]
    share = moved.pow(2).sum() / (whole["new"] - whole["old"]).pow(2).sum()
    return [name, f"{len(part) / len(whole):.1%}", f"{moved.mean():+.3f}", f"{share:.1%}"]


def page(table: pandas.DataFrame) -> str:
    by_kind = dict(list(table.groupby(table["text"].map(kind))))
    certain, first = table["old"] >= math.log(LIKELY), table["rank"] == 1
    parts = {
        "all": table,
        **by_kind,
        f"probability at least {LIKELY}": table[certain],
        "likeliest, with less": table[~certain & first],
        "rank 2 to 5": table[table["rank"].between(2, 5)],
        "rank 6 and above": table[table["rank"] > 5],
        "in right answers": table[table["right"]],
        "in wrong answers": table[~table["right"]],
    }
    heading = ["tokens", "share of tokens", "mean log ρ", "share of the sum of (log ρ)²"]
    rows = [line(name, part, table) for name, part in parts.items() if len(part)]
    lost = (table["new"] - table["old"]).groupby(table["text"]).sum().nsmallest(SHOWN)
    most = ", ".join(f"`{text!r}` {change:+.0f}" for text, change in lost.items())
    return "\n".join([*markdown_table(heading, rows), "", f"Most lost in all: {most}"])


if __name__ == "__main__":
    schema.register()
    print(page(answered(Path(sys.argv[1]), sys.argv[2:])))
