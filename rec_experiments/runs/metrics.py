"""The numbers in metrics.jsonl: title, meaning, unit. As a program it prints docs/metrics.md."""

import functools
from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).with_suffix(".yaml")
INTRODUCTION = (
    "`metrics.jsonl` has a row for each gradient step. Row s describes the mini-batch of step s",
    "and, if there was one, the evaluation after s steps; row 0 is the initial policy. Expected",
    "values come from published runs where there are any ([the regime](miniature.md#the-regime)),",
    "otherwise from experience; `python -m rec_experiments regime` compares a run with published",
    "values. To add one, give its value in `training/metrics.py`, describe it in",
    "`runs/metrics.yaml`, and run `make pages`.",
)
WITHOUT_UNIT = ("", "share", "reward")  # units that a label does not repeat


class Metric(NamedTuple):
    """title: its name in tables and on axes. unit: "" for a pure number. expected: values in a
    healthy run, "" if they depend on the machine."""

    title: str
    meaning: str
    unit: str
    expected: str


@functools.cache
def catalogue() -> dict[str, dict[str, Metric]]:
    """The metrics by topic and key."""
    topics = yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {
        topic: {key: Metric(**entry) for key, entry in metrics.items()}
        for topic, metrics in topics.items()
    }


@functools.cache
def _by_key() -> dict[str, Metric]:
    return {key: metric for topic in catalogue().values() for key, metric in topic.items()}


def title(key: str) -> str:
    """The title of a metric; the key itself if the catalogue lacks it."""
    return _by_key()[key].title if key in _by_key() else key


def label(key: str) -> str:
    """The title with its unit, for an axis, as in `entropy (nats/token)`."""
    unit = _by_key()[key].unit if key in _by_key() else ""
    return title(key) + ("" if unit in WITHOUT_UNIT else f" ({unit.replace(' per ', '/')})")


def page() -> str:
    """docs/metrics.md."""
    lines = ["# Metrics", "", *INTRODUCTION]
    for topic, metrics in catalogue().items():
        lines += [
            "",
            f"## {topic.capitalize()}",
            "",
            "| key | title | meaning | unit | expected |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [f"| `{key}` | {' | '.join(metric)} |" for key, metric in metrics.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
