"""How a batch is cut into gradient steps: epochs over it, each in mini-batches of whole groups."""

from pydantic import PositiveInt

from rec_experiments.common import rng
from rec_experiments.common.batch import StepIndex
from rec_experiments.common.pieces import Piece


class Updates(Piece):
    """epochs: passes over each batch. mini_batches: gradient steps in each pass. shuffle: whether
    each pass assigns groups to mini-batches in a random order.
    """

    epochs: PositiveInt
    mini_batches: PositiveInt
    shuffle: bool

    @property
    def per_batch(self) -> int:
        """Gradient steps on one batch."""
        return self.epochs * self.mini_batches

    def batches(self, updates: int) -> int:
        """The most batches that this many gradient steps can use."""
        return -(-updates // self.per_batch)

    def index_of(self, update: int) -> StepIndex:
        """Gradient step number `update`, counted from 0."""
        batch, rest = divmod(update, self.per_batch)
        return StepIndex(batch, *divmod(rest, self.mini_batches), update)

    def groups(self, index: StepIndex, groups: int, seed: int) -> list[int]:
        """Which of a batch's groups are in the mini-batch of `index`, in order."""
        order = range(groups)
        if self.shuffle and self.mini_batches > 1:
            named = rng.generator(seed, rng.PARTS, index.batch, index.epoch)
            order = named.permutation(groups).tolist()
        start, end = (
            groups * n // self.mini_batches for n in (index.mini_batch, index.mini_batch + 1)
        )
        return sorted(order[start:end])

    def describe(self) -> str:
        if self.per_batch == 1:
            return "one gradient step per batch"
        return (
            f"{self.per_batch} gradient steps per batch: {self.epochs} epochs x "
            f"{self.mini_batches} mini-batches"
        )
