"""Where runs are, and in how many cells of a figure a run has begun.

No configuration is composed for this: composing the 2,600 jobs of the largest sweep takes minutes.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from rec_experiments import sweeps
from rec_experiments.analysis.results.runs import run_folders
from rec_experiments.config import schema
from rec_experiments.config.identity import NOT_IDENTITY, ON_POLICY, flat
from rec_experiments.errors import UserError
from rec_experiments.runs.run_folder import read_config

Config = dict[str, Any]  # dotted keys


def begun(
    figure: sweeps.Figure, folders: Sequence[Path] | None, overrides: list[str]
) -> tuple[int, int]:
    """In how many cells of a figure a run has begun, and the number of cells. Seeds share a cell.

    folders, overrides: as in `figure_data.collect`. The first number is an upper bound: a run
    counts for each cell of its method, schedule and single values. Every run of an archive counts.
    """
    cells: dict[frozenset[str], bool] = {}
    configs: dict[Any, list[Config]] = defaultdict(list)
    for path in run_folders(folders or [output_folder(overrides)]):
        config = _config(path)
        configs[config.get("seed")].append(config)
    archived = any(folder.is_file() for folder in folders or ())
    for point in sweeps.points(figure, overrides):
        cell = frozenset(line for key, line in point.lines.items() if key != "seed")
        wanted = {key: value for line in point.overrides for key, value in _values(line).items()}
        cells[cell] = (
            archived
            or cells.get(cell, False)
            or any(
                all(config.get(key, value) == value for key, value in wanted.items())
                for config in (*configs[wanted.get("seed")], *configs[None])
            )
        )
    return sum(cells.values()), len(cells)


def output_folder(overrides: Iterable[str]) -> Path:
    """Where the sweeps put their runs."""
    chosen = [line.partition("=")[2] for line in overrides if line.startswith("output_dir=")]
    return Path(chosen[-1]).expanduser() if chosen else default_folder()


def default_folder() -> Path:
    """The default output_dir."""
    config = (schema.CONF / "config.yaml").read_text(encoding="utf-8")
    return Path(yaml.safe_load(config)["output_dir"])


@functools.lru_cache(maxsize=4096)
def _config(path: Path) -> Config:
    """The values of a run, which never change; {}, which fits every cell, if they are damaged."""
    try:
        return flat(read_config(path))
    except UserError:
        return {}


@functools.cache
def _values(line: str) -> Config:
    """Values that a run has because of this override, as far as that is known without Hydra."""
    key, _, choice = line.partition("=")
    if "${" in choice or (key != "algo" and key.partition(".")[0] in NOT_IDENTITY):
        return {}
    if key not in ("algo", "sync"):
        return sweeps.single_value(line)
    files = (folder / key / f"{choice}.yaml" for folder in schema.conf_folders())
    file = next(filter(Path.is_file, files), None)
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file else {}
    if key == "algo":
        return {"algo.name": content["algo"]["name"]} if "name" in content.get("algo", {}) else {}
    return {f"sync.{name}": content.get(name, usual) for name, usual in ON_POLICY.items()}
