"""MyAlgorithm: policy gradients with a capped importance weight."""

from pydantic import PositiveFloat

from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Piece


class MyWeight(Piece):
    """w(ρ) = min(ρ, cap), where ρ = π_θ / π_behavior.

    The fields are the configuration; conf/weight/my_algorithm.yaml has their values.
    """

    formula = "min({0}, {cap:g})"  # as a run shows it; {0} is the name of the ratio
    cap: PositiveFloat

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """The weight of each token's gradient, B x T. log_ratio_BT: log ρ, without gradient."""
        return log_ratio_BT.exp().clamp(max=self.cap)
