"""Changes of a reward between verifier and algorithm; pure functions of one response."""

from dataclasses import dataclass, field
from typing import Protocol

from rec_experiments import rng
from rec_experiments.types import Piece, Response, SampleKey, check_range, within


class RewardAdjustment(Protocol):
    def __call__(self, reward: float, response: Response, key: SampleKey, limit: int) -> float:
        """The reward to learn from. key: seeds randomness. limit: most tokens of a response."""

    def describe(self) -> str:
        """A one-line description; empty for no change."""


@dataclass(kw_only=True)
class AsVerified(Piece):
    """The verifier's reward, unchanged."""

    def __call__(self, reward: float, response: Response, key: SampleKey, limit: int) -> float:
        return reward

    def describe(self) -> str:
        return ""


@dataclass(kw_only=True)
class OverlongPenalty(Piece):
    """Soft overlong punishment (DAPO, arXiv 2503.14476, Eq. 13): subtracts 0 up to `limit` −
    `buffer` tokens, then linearly more, and 1 at `limit` tokens or if the response was cut. Raises
    ValueError for a buffer below 1 token.
    """

    buffer: int = field(metadata=within(least=1))

    def __call__(self, reward: float, response: Response, key: SampleKey, limit: int) -> float:
        over = len(response.tokens) - (limit - self.buffer)
        return reward - (min(1.0, max(0, over) / self.buffer) if response.finished else 1.0)

    def describe(self) -> str:
        return f"minus up to 1 over the last {self.buffer} tokens before the limit"


@dataclass(kw_only=True)
class RewardRange(Piece):
    """The rewards from low to high. Raises ValueError unless low ≤ high."""

    low: float
    high: float = field(metadata=within())

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "low", most=self.high)


@dataclass(kw_only=True)
class FlipNoise(RewardRange):
    """Mirrors a random share of the rewards: r becomes low + high − r.

    Raises ValueError unless 0 ≤ share ≤ 1.
    """

    share: float = field(metadata=within(least=0, most=1))

    def __call__(self, reward: float, response: Response, key: SampleKey, limit: int) -> float:
        words = key.response, key.group | key.attempt << 32, key.batch
        flipped = rng.generator(key.seed, rng.REWARD, *words).random() < self.share
        return self.low + self.high - reward if flipped else reward

    def describe(self) -> str:
        return f"mirrored between {self.low:g} and {self.high:g} with probability {self.share:g}"


@dataclass(kw_only=True)
class ClippedReward(RewardRange):
    """Clips rewards to [low, high]."""

    def __call__(self, reward: float, response: Response, key: SampleKey, limit: int) -> float:
        return min(self.high, max(self.low, reward))

    def describe(self) -> str:
        return f"clipped to {self.low:g} … {self.high:g}"
