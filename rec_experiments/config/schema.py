"""The classes of the configuration, by config group and name, and how they reach Hydra.

YAML files hold values; dataclasses hold names, types and ranges. An unknown key or a value of the
wrong type fails when the configuration is composed, a value out of range when `build` creates the
experiment. Packages outside of this one add classes (plugins.py).
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from rec_experiments.algo import (
    advantages,
    aggregation,
    batch_clips,
    best_of_k,
    clips,
    corrections,
    covariance,
    data_weighting,
    ratios,
    regularizers,
    sequence_clips,
    truncation,
    weights,
)
from rec_experiments.config import plugins
from rec_experiments.config.experiment import Experiment, Pieces, Preset
from rec_experiments.config.identity import NOT_IDENTITY
from rec_experiments.datasets.arithmetic import Arithmetic
from rec_experiments.datasets.calculator import Calculator
from rec_experiments.datasets.math_problems import MathProblems
from rec_experiments.datasets.own_data import OwnData
from rec_experiments.datasets.reasoning_gym import ReasoningGym
from rec_experiments.datasets.reduction import Reduction, Shortcuts
from rec_experiments.datasets.tool_calls import ToolCalls
from rec_experiments.datasets.word_problems import WordProblems
from rec_experiments.errors import UserError
from rec_experiments.policy.models import Adapted, FineTuned, Pretrained, Tiny
from rec_experiments.policy.protocol import ModelChoice
from rec_experiments.rollout import replay, reward
from rec_experiments.rollout.pipeline import Overlap, Sequential
from rec_experiments.rollout.protocol import Pipeline
from rec_experiments.rollout.schedule import InFlight, Schedule
from rec_experiments.samplers.native import Mismatched, Native, NoisyLogits
from rec_experiments.samplers.protocol import SamplerChoice
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.tracking.local import TensorBoard, Trackio
from rec_experiments.tracking.protocol import Tracking
from rec_experiments.tracking.trackers import NoTracking, Wandb
from rec_experiments.training import policies
from rec_experiments.training.optimizers import AdamW, AdamW8bit
from rec_experiments.training.protocol import Optimizer
from rec_experiments.training.updates import Updates
from rec_experiments.types import Dataset, Piece

# In a checkout `conf` is next to the package, in a wheel inside it.
PACKAGE = plugins.PACKAGE
CONF = next(folder / "conf" for folder in (PACKAGE, PACKAGE.parent) if (folder / "conf").is_dir())

SCHEMAS: dict[str, dict[str, type]] = {
    "algo": {"preset": Preset},
    "advantage": {
        "mean": advantages.GroupMean,
        "standard": advantages.GroupStandard,
        "whitened": advantages.GroupWhitened,
        "batch_standard": advantages.BatchStandard,
        "length_weighted": advantages.LengthWeighted,
        "leave_one_out": advantages.LeaveOneOut,
        "relative_to_mean": advantages.RelativeToMean,
        "fixed": advantages.FixedBaseline,
        "optimal_value": advantages.OptimalValue,
        "max_at_k": advantages.MaxAtK,
    },
    "data_weighting": {
        "uniform": data_weighting.Uniform,
        "drop_negatives": data_weighting.DropNegatives,
        "exponential": data_weighting.ExponentialWeight,
        "pairwise": data_weighting.PairwiseWeight,
        "varied_groups": data_weighting.VariedGroups,
    },
    "clip": {
        "none": clips.NoClip,
        "one_side": clips.OneSide,
        "two_side": clips.TwoSide,
        "ring": clips.Ring,
        "dual": clips.Dual,
        "log_bounds": clips.LogBounds,
        "reciprocal": clips.Reciprocal,
        "around_proximal": clips.AroundProximal,
        "total_variation": clips.TotalVariation,
        "binary_kl": clips.BinaryKl,
        "two_side_variation": clips.TwoSideVariation,
        "isometric": clips.Isometric,
        "near_negatives": sequence_clips.NegativesNearBehavior,
        "mean_variation": sequence_clips.MeanVariation,
        "prefix_budget": sequence_clips.PrefixBudget,
        "veto": sequence_clips.Veto,
        "second_moment": batch_clips.SecondMoment,
        "second_moment_of_all": batch_clips.SecondMomentOfAll,
        "second_moment_bounds": batch_clips.SecondMomentBounds,
        "balanced": batch_clips.Balanced,
        "covariance": covariance.CovarianceClip,
    },
    "weight": {
        "none": weights.NoWeight,
        "importance": weights.ImportanceWeight,
        "behavior": weights.BehaviorWeight,
        "capped": weights.CappedWeight,
        "bounded": weights.BoundedWeight,
        "capped_behavior": weights.CappedBehavior,
        "zero": weights.ZeroWeight,
        "tapered": weights.TaperedWeight,
        "token_tapered": weights.TokenTaper,
        "soft_gate": weights.SoftGate,
        "geometric_mean": weights.GeometricMean,
        "gamma": weights.GammaWeight,
        "power_of_positives": weights.PowerOfPositives,
        "soft_variation": weights.SoftVariation,
    },
    "regularizer": {
        "none": regularizers.NoRegularizer,
        "sequence_square": regularizers.SequenceSquare,
        "token_square": regularizers.TokenSquare,
        "k1": regularizers.K1,
        "k2": regularizers.K2,
        "k3": regularizers.K3,
        "unbiased_kl": regularizers.UnbiasedKl,
        "exact_kl": regularizers.ExactKl,
        "pair_square": regularizers.PairSquare,
        "covariance": covariance.CovariancePenalty,
        "best_of_k": best_of_k.OffPolicyBest,
    },
    "aggregation": {
        "token_mean": aggregation.TokenMean,
        "sequence_mean": aggregation.SequenceMean,
        "sequence_token_mean": aggregation.SequenceTokenMean,
        "group_token_mean": aggregation.GroupTokenMean,
    },
    "truncation": {
        "train": truncation.TrainTruncated,
        "mask": truncation.MaskTruncated,
        "penalise": truncation.PenaliseTruncated,
    },
    "ratio": {
        "token": ratios.TokenRatio,
        "sequence": ratios.SequenceRatio,
        "proximal": ratios.ProximalRatio,
    },
    "correction": {
        "none": corrections.NoCorrection,
        "mismatch": corrections.MismatchCorrection,
    },
    "proximal": {
        "batch_start": policies.BatchStart,
        "interpolated": policies.Interpolated,
        "moving_average": policies.MovingAverage,
    },
    "reference": {"reference": policies.Reference, "staged": policies.StagedReference},
    "updates": {"updates": Updates},
    "buffer": {"fresh": replay.NoReplay, "replay": replay.Replay},
    "reward": {
        "as_verified": reward.AsVerified,
        "overlong": reward.OverlongPenalty,
        "noise": reward.FlipNoise,
        "clipped": reward.ClippedReward,
    },
    "sync": {"schedule": Schedule, "in_flight": InFlight},
    "model": {
        "tiny": Tiny,
        "pretrained": Pretrained,
        "fine_tuned": FineTuned,
        "lora": Adapted,
    },
    "dataset": {
        "arithmetic": Arithmetic,
        "calculator": Calculator,
        "reduction": Reduction,
        "shortcuts": Shortcuts,
        "math_problems": MathProblems,
        "own_data": OwnData,
        "reasoning_gym": ReasoningGym,
        "tool_calls": ToolCalls,
        "word_problems": WordProblems,
    },
    "sampler": {
        "native": Native,
        "mismatched": Mismatched,
        "noisy_logits": NoisyLogits,
        "vllm": Vllm,
    },
    "pipeline": {"sequential": Sequential, "overlap": Overlap},
    "optimizer": {"adamw": AdamW, "adamw_8bit": AdamW8bit},
    "tracking": {
        "none": NoTracking,
        "wandb": Wandb,
        "trackio": Trackio,
        "tensorboard": TensorBoard,
    },
}

# The slots that outside packages may add classes to, and the protocol of a class there.
PROTOCOLS: dict[str, type] = {
    "truncation": truncation.Truncation,
    "advantage": advantages.Advantage,
    "data_weighting": data_weighting.DataWeighting,
    "ratio": ratios.Ratio,
    "clip": clips.Clip,
    "weight": weights.Weight,
    "correction": corrections.Correction,
    "regularizer": regularizers.Regularizer,
    "aggregation": aggregation.Aggregation,
    "proximal": policies.Proximal,
    "buffer": replay.ReplayBuffer,
    "reward": reward.RewardAdjustment,
    "model": ModelChoice,
    "dataset": Dataset,
    "sampler": SamplerChoice,
    "pipeline": Pipeline,
    "optimizer": Optimizer,
    "tracking": Tracking,
}

T = TypeVar("T", bound=Pieces)


@functools.cache
def registry() -> plugins.Registry:
    """SCHEMAS, and the classes of outside packages. Raises UserError for one that does not fit."""
    plugins.refuse_files(CONF, plugins.packages())
    return plugins.merged(SCHEMAS, PROTOCOLS, plugins.packages())


def conf_folders() -> list[Path]:
    """The folders with configuration files: ours, then those of outside packages."""
    return [CONF, *(each.conf for each in plugins.packages() if each.conf.is_dir())]


class SchemaSource(ConfigSource):
    """The dataclasses as Hydra's group `schema`, which is not listed among the user's groups.

    In place of Hydra's ConfigStore, which is copied at every access: composing would take longer.
    """

    @staticmethod
    def scheme() -> str:
        return "schema"

    def load_config(self, config_path: str) -> ConfigResult:
        cls = _at(config_path)
        assert cls is not None
        node = OmegaConf.structured(cls)
        if issubclass(cls, Piece):
            node.kind = config_path.rpartition("/")[2]
        return ConfigResult(
            provider=self.provider, path=self.full_path(), config=node, header={"package": None}
        )

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return False

    def is_config(self, config_path: str) -> bool:
        return _at(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


def _at(config_path: str) -> type | None:
    """The dataclass of schema/experiment or schema/SLOT/NAME; None for any other place."""
    match config_path.split("/"):
        case ["schema", "experiment"]:
            return Experiment
        case ["schema", slot, name]:
            return registry().get(slot, {}).get(name)
    return None


class SearchPath(SearchPathPlugin):
    """Registered at run time, not installed, so that other programs with Hydra do not see it."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider=plugins.OURS, path=f"{SchemaSource.scheme()}://")
        for folder in conf_folders()[1:]:
            search_path.append(provider=folder.parent.name, path=f"file://{folder}")


def register() -> None:
    """Make the classes and the configuration of outside packages known to Hydra. Raises UserError
    for a package that does not fit."""
    registry()
    for plugin in (SchemaSource, SearchPath):
        Plugins.instance().register(plugin)


def restore(resolved: dict[str, Any]) -> DictConfig:
    """The typed configuration of an experiment from the plain values in its run folder.

    Keys that do not change results, and did not exist yet when the run was made, have the values
    of conf/config.yaml. Raises UserError for a kind that is not installed.
    """
    config = OmegaConf.structured(Experiment)
    usual: Any = OmegaConf.load(CONF / "config.yaml")
    newer = {key: usual[key] for key in NOT_IDENTITY if key in usual}
    for key, value in {**newer, **resolved}.items():
        if isinstance(value, dict):
            classes = registry()[key]
            kind = value.get("kind", next(iter(classes)))
            if kind not in classes:
                raise UserError(
                    f"{key}.kind={kind}: is not installed; allowed: {', '.join(classes)}"
                )
            config[key] = OmegaConf.merge(OmegaConf.structured(classes[kind]), value)
        else:
            config[key] = value
    return config


def build(config: DictConfig, kind: type[T]) -> T:
    """The typed object of a composed configuration. Raises UserError, which names the key, for a
    value out of range."""
    parts: dict[str, Any] = {}
    names = _field_names(kind)
    with _named(""):
        _check_keys(config, names)
    for key in names:
        if OmegaConf.is_missing(config, key):
            raise UserError(f"{key}: has no value; choose one, as in {key}=NAME (see --help)")
        with _named(f"{key}."):
            value = config[key]
            parts[key] = OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
            if key in registry():
                _check_class(key, parts[key])
    with _named(""):
        return kind(**parts)


def _check_keys(config: DictConfig, allowed: Iterable[str], prefix: str = "") -> None:
    """Raise UserError for a key that `+key=value` added, and that would be ignored."""
    for key, value in ((str(key), value) for key, value in config.items()):
        if key not in allowed:
            raise UserError(
                f"{prefix}{key}: is not a key of the experiment; "
                f"allowed: {', '.join(sorted(allowed))}"
            )
        if isinstance(value, DictConfig):
            kind = OmegaConf.get_type(value)
            names = _field_names(kind) if dataclasses.is_dataclass(kind) else map(str, value)
            _check_keys(value, list(names), f"{prefix}{key}.")


def _field_names(kind: Any) -> list[str]:
    """The fields of a dataclass, without class variables."""
    return [field.name for field in dataclasses.fields(kind)]


def _check_class(slot: str, chosen: object) -> None:
    """Raise UserError for a choice whose file names no class: its value is a dict or a list."""
    if isinstance(chosen, dict | list):
        raise UserError(
            f"{slot}: its choice names no class; the file must begin with "
            f"defaults: [/schema/{slot}/NAME@_here_, _self_]"
        )
    if isinstance(chosen, Piece):
        _check_kind(slot, chosen)


def _check_kind(slot: str, piece: Piece) -> None:
    """Raise UserError if the user has set `kind`, which would mislabel the run."""
    registered = {cls: name for name, cls in registry()[slot].items()}[type(piece)]
    if piece.kind != registered:
        raise UserError(
            f"{slot}.kind={piece.kind}: is set by the group's choice, here {registered}"
        )


@contextlib.contextmanager
def _named(prefix: str) -> Iterator[None]:
    """Turn the ValueError of a dataclass's range check, and a missing value, into a UserError with
    the full name of the key."""
    try:
        yield
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}: has no value") from error
    except ValueError as error:
        raise UserError(f"{prefix}{error}") from error
