"""Changes of rewards between verifier and algorithm; pure functions of each response."""

from typing import Protocol, runtime_checkable

from pydantic import PositiveInt

from rec_experiments.common import rng
from rec_experiments.common.batch import Responses, SampleKey, Tensor
from rec_experiments.common.pieces import Piece, Share


@runtime_checkable
class RewardAdjustment(Protocol):
    def __call__(
        self, reward_B: Tensor, responses: Responses, keys: list[SampleKey], limit: int
    ) -> Tensor:
        """The rewards to learn from, float64. keys: seed randomness, one for each response. limit:
        most tokens of a response."""

    def describe(self) -> str:
        """A one-line description; empty for no change."""


class AsVerified(Piece):
    """The verifier's reward, unchanged."""

    formula = ""

    def __call__(
        self, reward_B: Tensor, responses: Responses, keys: list[SampleKey], limit: int
    ) -> Tensor:
        return reward_B


class OverlongPenalty(Piece):
    """Soft overlong punishment (DAPO, arXiv 2503.14476, Eq. 13): subtracts 0 up to `limit` −
    `buffer` tokens, then linearly more, and 1 at `limit` tokens or if the response was cut. Raises
    ValueError for a buffer below 1 token.
    """

    formula = "minus up to 1 over the last {buffer} tokens before the limit"

    buffer: PositiveInt

    def __call__(
        self, reward_B: Tensor, responses: Responses, keys: list[SampleKey], limit: int
    ) -> Tensor:
        over_B = (responses.length_B - (limit - self.buffer)).double()
        return reward_B - (over_B / self.buffer).clamp(0, 1).where(responses.finished_B, 1.0)


class FlipNoise(Piece):
    """Mirrors a random share of the rewards: r becomes low + high − r.

    Raises ValueError unless 0 ≤ share ≤ 1 and low ≤ high.
    """

    formula = "mirrored between {low:g} and {high:g} with probability {share:g}"

    share: Share
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low}: must be at most high={self.high}")

    def __call__(
        self, reward_B: Tensor, responses: Responses, keys: list[SampleKey], limit: int
    ) -> Tensor:
        flipped = [number < self.share for number in map(self._number, keys)]
        return (self.low + self.high - reward_B).where(reward_B.new_tensor(flipped) > 0, reward_B)

    @staticmethod
    def _number(key: SampleKey) -> float:
        words = key.response, key.group | key.attempt << 32, key.batch
        return rng.generator(key.seed, rng.REWARD, *words).random()
