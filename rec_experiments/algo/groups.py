"""Sums and means within groups of responses to one prompt. Group ids are any integers."""

import math

from rec_experiments.common.batch import Tensor

FLOAT32_EPSILON = 2.0**-23  # the distance from 1 to the next number


def group_sum(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """For each row the sum of `values_B` over the rows of its group."""
    ids_G, row_group_B = groups_B.unique(return_inverse=True)
    totals_G = values_B.new_zeros(len(ids_G))
    return totals_G.index_add(0, row_group_B, values_B)[row_group_B]


def group_size(groups_B: Tensor) -> Tensor:
    """For each row the number of rows in its group, as float64."""
    return group_sum(groups_B.new_ones(groups_B.shape).double(), groups_B)


def group_mean(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """For each row the mean of `values_B` over its group."""
    return group_sum(values_B, groups_B) / group_size(groups_B)


def group_max(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """For each row the largest of `values_B` within its group."""
    ids_G, row_group_B = groups_B.unique(return_inverse=True)
    empty_G = values_B.new_full((len(ids_G),), -math.inf)
    return empty_G.scatter_reduce(0, row_group_B, values_B, "amax")[row_group_B]


def center(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """values − group mean; exactly 0 for a value that equals the mean.

    Rewards are often computed in float32, so differences below float32's rounding of the largest
    reward count as 0. Otherwise rounding errors would split equal rewards into positives and
    negatives, and division by their tiny standard deviation would make them as large as advantages.
    """
    difference_B = values_B - group_mean(values_B, groups_B)
    rounding_B = FLOAT32_EPSILON * group_max(values_B.abs(), groups_B)
    return difference_B.masked_fill(difference_B.abs() <= rounding_B, 0.0)
