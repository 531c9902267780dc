"""Which run an experiment is: what decides what it computes, and its folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

from rec_experiments.errors import UserError

# Keys that say where and how a run goes or what a method is called, not what is computed.
NOT_IDENTITY = (
    "algo", "pipeline", "tracking", "async_checkpoints", "output_dir", "run_dir", "resplit",
    "remake",
)  # fmt: skip

ON_POLICY = {"interval": 1, "offset": 0}  # keys of `sync`: a synchronisation before every batch


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that decides what a run computes."""
    return {key: value for key, value in config.items() if key not in NOT_IDENTITY}


def run_path(config: dict[str, Any]) -> Path:
    """The run's folder: run_dir, or a name made of method, schedule, seed and identity."""
    if config["run_dir"]:
        return Path(config["run_dir"])
    digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()
    sync, name = config["sync"], config["algo"]["name"].lower().replace(" ", "-")
    schedule = "offline" if sync["interval"] is None else f"m{sync['interval']}-n{sync['offset']}"
    return Path(config["output_dir"]) / f"{name}_{schedule}_seed{config['seed']}_{digest[:8]}"


def on_policy_path(config: dict[str, Any], folder: Path) -> Path | None:
    """Where a run goes into `folder` that differs from this one in its schedule alone, and draws
    every batch from the newest policy. None if this one does so."""
    sync = config["sync"] | ON_POLICY
    twin = {**config, "sync": sync, "output_dir": str(folder), "run_dir": None}
    return run_path(twin) if sync != config["sync"] else None


def refuse_other(found: dict[str, Any], wanted: dict[str, Any], place: str) -> None:
    """Raise UserError unless two identities are the same. place: opens the line, as in "run_dir=x:
    holds"."""
    if found.keys() != wanted.keys():
        strange = ", ".join(sorted(found.keys() ^ wanted.keys()))
        raise UserError(
            f"{place} a run of another version of this package, with or without the keys "
            f"{strange}; choose another run_dir"
        )
    before, now = flat(found), flat(wanted)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            way_out = ", or resplit=true, which is no longer bit for bit" if key == "ranks" else ""
            raise UserError(
                f"{place} another experiment, {key} is {before.get(key)} there and "
                f"{now.get(key)} here; choose another run_dir{way_out}"
            )


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in flat(branch, f"{prefix}.{name}" if prefix else str(name)).items()
    }
