"""The numbers in metrics.jsonl, as metrics.yaml describes them."""

import functools
from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).with_suffix(".yaml")
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
