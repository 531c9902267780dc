"""MyAlgorithm: policy gradients with a capped importance weight."""

from dataclasses import dataclass, field

from rec_experiments.types import LossInput, Piece, Tensor, within


@dataclass(kw_only=True)
class MyAlgorithm(Piece):
    """w(ρ) = min(ρ, cap), where ρ = π_θ / π_behavior.

    The fields are the configuration; conf/weight/my_algorithm.yaml has the values.
    """

    cap: float = field(metadata=within(above=0))

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """The weight of each token's gradient, B x T. log_ratio_BT: log ρ, without gradient."""
        return log_ratio_BT.exp().clamp(max=self.cap)

    def describe(self, ratio: str) -> str:
        """The factor as the formula of a run shows it."""
        return f" · min({ratio}, {self.cap:g})"


SCHEMAS = {"weight": {"my_algorithm": MyAlgorithm}}  # slot to name to class
