"""What displays call a run: its method, and what its command changed beyond the preset.

The name of a run folder identifies a run with a digest; a label says in words how it differs.
"""

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rec_experiments.common.pieces import TARGET, class_name
from rec_experiments.config.identity import NOT_IDENTITY, flat, identity
from rec_experiments.config.plugins import conf_file

Config = dict[str, Any]
Named = tuple[Config, Sequence[str]]  # a run's resolved configuration, and the words of its command

# Overrides that a method's label leaves out: those that do not change it, and schedule and seed.
LEFT_OUT_GROUPS = (
    *NOT_IDENTITY, "hydra", "sweep", "scale", "seed", "checkpoint_every", "eval_every",
    "eval_problems", "eval_samples", "kl_every", "micro_batch_size", "micro_batch_tokens",
)  # fmt: skip
SCHEDULE = ("sync.interval", "sync.offset")
LEFT_OUT_KEYS = ("sync", *SCHEDULE)
SHORT = {"optimizer.learning_rate": "lr"}
JOINT = " · "


def methods(runs: Sequence[Named]) -> list[str]:
    """The method of each run and what its command changed, as in `GRPO · clip.high=2.0 · lr=1e-4`.

    Only runs that differ in nothing but schedule and seed share a label: if their commands do not
    distinguish others, the fewest keys that do are added. The key `name` replaces what the command
    says.
    """
    return _told_apart([_method(*run) for run in runs], runs, {"seed", *SCHEDULE})


def run_labels(runs: Sequence[Named]) -> list[str]:
    """A label of each run: its method as above, schedule and seed; or `name` alone. Only runs with
    the same configuration share one."""
    labels = [
        method
        if config.get("name")
        else JOINT.join([method, schedule_name(config["sync"]), f"seed {config['seed']}"])
        for method, (config, _) in zip(methods(runs), runs, strict=True)
    ]
    return _told_apart(labels, runs, set())


def run_label(config: Config, command: Sequence[str]) -> str:
    """The label of a run that is shown alone."""
    return run_labels([(config, command)])[0]


def without_shared(labels: Sequence[str]) -> tuple[list[str], str]:
    """Labels for a list of runs: without the changes, schedule or seed that all of them have, and
    those. A single label stays whole."""
    parts = [label.split(JOINT) for label in labels]
    if len(parts) < 2:
        return [*labels], ""
    shared = [part for part in parts[0][1:] if all(part in each[1:] for each in parts[1:])]
    short = [[first, *(each for each in more if each not in shared)] for first, *more in parts]
    return [*map(JOINT.join, short)], JOINT.join(shared)


def tracked_name(config: Config, command: Sequence[str], folder: Path) -> str:
    """The name of a run in a tracker: its `name`; or its label with the end of its folder's name,
    so that no other run has it."""
    if config.get("name"):
        return str(config["name"])
    return JOINT.join([run_label(config, command), folder.name.rpartition("_")[2]])


def _method(config: Config, command: Sequence[str]) -> str:
    if config.get("name"):
        return str(config["name"])
    changed: dict[str, str] = {}
    for word in command:
        key, equals, value = word.lstrip("+~").partition("=")
        left_out = key in LEFT_OUT_KEYS or key.partition(".")[0] in LEFT_OUT_GROUPS
        if equals and not word.startswith("-") and not left_out:
            changed[key] = value
    return JOINT.join([str(config["algo"]["name"]), *_texts(sorted(changed.items()))])


def _texts(values: Sequence[tuple[str, Any]]) -> list[str]:
    return [
        setting_name(value)
        if key == "setting"
        else f"{SHORT.get(key, key.removesuffix(f'.{TARGET}'))}={_without_folder(value)}"
        for key, value in values
    ]


def _without_folder(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def shown(words: Sequence[str]) -> str:
    """Overrides as labels show them."""
    pairs = [word.lstrip("+~").partition("=") for word in words]
    return JOINT.join(_texts([(key, value) for key, _, value in pairs]))


def setting_name(setting: str) -> str:
    """The data of a setting, as its scale names it: setting=mini/gsm8k trains on reduction modulo
    8, which stands in for GSM8K."""
    scale, _, row = setting.partition("/")
    for name, data in sorted(_names(scale).items(), key=lambda pair: -len(pair[0])):
        if row.startswith(name):
            return f"{data}{row.removeprefix(name).replace('_', ' ')}"
    return f"setting={setting}"


@functools.cache
def _names(scale: str) -> dict[str, str]:
    """The names of a scale's settings; none for a scale that does not exist."""
    file = conf_file(f"scale/{scale}")
    return yaml.safe_load(file.read_text(encoding="utf-8"))["names"] if file else {}


def _told_apart(labels: Sequence[str], runs: Sequence[Named], same: set[str]) -> list[str]:
    """The labels, longer where configurations that differ in more than `same` share one."""
    configs = [
        {key: value for key, value in sorted(flat(identity(config)).items()) if key not in same}
        for config, _ in runs
    ]
    sharing: dict[str, dict[str, Config]] = defaultdict(dict)
    for label, config in zip(labels, configs, strict=True):
        sharing[label][repr(config)] = config
    keys = {label: _distinguishing_keys([*found.values()]) for label, found in sharing.items()}
    return [
        JOINT.join([label, *_texts([(key, config[key]) for key in keys[label] if key in config])])
        for label, config in zip(labels, configs, strict=True)
    ]


def _distinguishing_keys(configs: list[Config]) -> list[str]:
    """Keys whose values distinguish all configurations, chosen greedily: the key that separates the
    most of them, and the shortest of equals."""

    def kinds(keys: list[str]) -> int:
        return len({repr([(key in each, each.get(key)) for key in keys]) for each in configs})

    candidates = sorted({key for each in configs for key in each}, key=lambda key: (len(key), key))
    chosen: list[str] = []
    while kinds(chosen) < len(configs):
        chosen.append(max(candidates, key=lambda key: kinds([*chosen, key])))
    return chosen


def schedule_name(sync: dict[str, Any]) -> str:
    """The schedule of a resolved `sync`, as in: offline, interval 20, offset 10, in flight."""
    interval, offset = sync["interval"], sync["offset"]
    if interval is None:
        return "offline"
    parts = [f"interval {interval}"] if interval > 1 else []
    parts += [f"offset {offset}"] if offset else []
    if "versions" in sync:
        parts.append(f"in flight, {sync['versions']} versions of {sync['tokens']} tokens")
    return ", ".join(parts) or "on-policy"


def gpus_of(config: dict[str, Any]) -> int:
    """The GPUs that a run needs on one machine: one for each rank, or two if rollouts overlap
    with training. 0 if it uses whatever device there is."""
    if config["device"] != "cuda":
        return 0
    return config["ranks"] * (2 if class_name(config["pipeline"]) == "Overlap" else 1)
