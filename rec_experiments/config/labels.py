"""What displays call a run: its method, and what its command changed beyond the preset.

The name of a run folder identifies a run with a digest; a label says in words how it differs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rec_experiments.config.identity import NOT_IDENTITY
from rec_experiments.tracking.trackers import schedule_name

# Overrides that a method's label leaves out: those that do not change it, and schedule and seed.
LEFT_OUT_GROUPS = (
    *NOT_IDENTITY, "hydra", "sweep", "scale", "seed", "checkpoint_every", "eval_every",
    "eval_problems", "eval_samples", "kl_every", "micro_batch_size", "micro_batch_tokens",
)  # fmt: skip
LEFT_OUT_KEYS = ("sync", "sync.interval", "sync.offset")
SHORT = {"optimizer.learning_rate": "lr"}
JOINT = " · "


def method(config: dict[str, Any], command: Sequence[str]) -> str:
    """The method of a run and what its command changed, as in `GRPO · clip.high=2.0 · lr=1e-4`.

    config: resolved. command: that of provenance.json, or overrides alone. Runs that differ only in
    their schedule and seed share it. The key `name` replaces it.
    """
    if config.get("name"):
        return str(config["name"])
    changed: dict[str, str] = {}
    for word in command:
        key, equals, value = word.lstrip("+~").partition("=")
        left_out = key in LEFT_OUT_KEYS or key.partition(".")[0] in LEFT_OUT_GROUPS
        if equals and not word.startswith("-") and not left_out:
            changed[SHORT.get(key, key)] = Path(value).name if value.startswith("/") else value
    return JOINT.join(
        [str(config["algo"]["name"]), *(f"{key}={value}" for key, value in sorted(changed.items()))]
    )


def run_label(config: dict[str, Any], command: Sequence[str]) -> str:
    """The label of one run: its method as above, schedule and seed; or `name` alone."""
    if config.get("name"):
        return str(config["name"])
    schedule = schedule_name(config["sync"])
    return JOINT.join([method(config, command), schedule, f"seed {config['seed']}"])
