"""The identity of a run: the configuration that determines its results, and its folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import TARGET, class_name

RELEASE = 13  # raised whenever the numbers of runs change

# Keys that do not affect results: names, places, and how a run is executed.
NOT_IDENTITY = (
    "algo", "name", "pipeline", "tracking", "async_checkpoints", "output_dir", "run_dir",
    "resplit", "remake",
)  # fmt: skip


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that determines the results of a run. It names a class
    without its module, so that a class can move."""
    return {
        key: {**value, TARGET: class_name(value)}
        if isinstance(value, dict) and TARGET in value
        else value
        for key, value in config.items()
        if key not in NOT_IDENTITY
    }


def run_path(config: dict[str, Any]) -> Path:
    """The run's folder: run_dir, or a name of method, schedule, seed and a digest of identity."""
    if config["run_dir"]:
        return Path(config["run_dir"]).expanduser()
    digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()
    sync, name = config["sync"], config["algo"]["name"].lower().replace(" ", "-")
    schedule = "offline" if sync["interval"] is None else f"m{sync['interval']}-n{sync['offset']}"
    folder = f"{name}_{schedule}_seed{config['seed']}_{digest[:8]}"
    return Path(config["output_dir"]).expanduser() / folder


def refuse_other(found: dict[str, Any], wanted: dict[str, Any], place: str) -> None:
    """Raise UserError unless two identities are equal. place: the start of the message, as in
    "run_dir=x: holds"."""
    if found.keys() != wanted.keys():
        strange = ", ".join(sorted(found.keys() ^ wanted.keys()))
        raise UserError(
            f"{place} a run of another version of this package (keys that differ: {strange}); "
            "choose another run_dir"
        )
    before, now = flat(found), flat(wanted)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            way_out = ", or resplit=true, without bit-identity" if key == "ranks" else ""
            raise UserError(
                f"{place} another experiment, {key} is {before.get(key)} there and "
                f"{now.get(key)} here; choose another run_dir{way_out}"
            )


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested mapping, with dotted keys."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in flat(branch, f"{prefix}.{name}" if prefix else str(name)).items()
    }
