"""The meaning of each number in metrics.jsonl. As a program it prints docs/metrics.md."""

from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).with_suffix(".yaml")
INTRODUCTION = (
    "`metrics.jsonl` has a row for each gradient step. Row s describes the mini-batch of step s",
    "and, if there was one, the evaluation after s steps; row 0 is the initial policy. Expected",
    "values come from published runs where there are any ([regime](regime.md)), otherwise from",
    "experience; `python -m rec_experiments regime` compares a run with published values.",
)


class Metric(NamedTuple):
    """unit: "" for a pure number. expected: values in a healthy run, "" if they depend on the
    machine."""

    meaning: str
    unit: str
    expected: str


def catalogue() -> dict[str, dict[str, Metric]]:
    """The metrics by topic and key."""
    topics = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {
        topic: {key: Metric(m["meaning"], m["unit"], m["expected"]) for key, m in metrics.items()}
        for topic, metrics in topics.items()
    }


def page() -> str:
    """docs/metrics.md."""
    lines = ["# Metrics", "", *INTRODUCTION]
    for topic, metrics in catalogue().items():
        lines += [
            "",
            f"## {topic.capitalize()}",
            "",
            "| key | meaning | unit | expected |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{key}` | {m.meaning} | {m.unit} | {m.expected} |" for key, m in metrics.items()
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
