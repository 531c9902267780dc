"""What each number of metrics.jsonl is, from metrics.yaml; run as a program, it prints the page."""

from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).with_suffix(".yaml")
INTRODUCTION = (
    "`metrics.jsonl` has a row for each gradient step. Row s has the mini-batch that step s",
    "consumed and, where evaluated, what the weights after s steps do; row 0 is the start. What",
    "is normal is read off published runs where there are any ([regime](regime.md)), and a rule",
    "of thumb otherwise: `python -m rec_experiments regime` sets a run beside them.",
)


class Metric(NamedTuple):
    """In words: what it is, its unit, "" for a pure number, and which values are normal, "" where
    they depend on the machine."""

    meaning: str
    unit: str
    normal: str


def catalogue() -> dict[str, dict[str, Metric]]:
    """The metrics by topic and key."""
    topics = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {
        topic: {key: Metric(m["is"], m["unit"], m["normal"]) for key, m in metrics.items()}
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
            "| key | is | unit | normal |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{key}` | {m.meaning} | {m.unit} | {m.normal} |" for key, m in metrics.items()
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
