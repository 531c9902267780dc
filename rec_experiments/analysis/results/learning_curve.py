"""A saturating curve fitted to an accuracy or a reward, to separate height from speed.

R(s) = R₀ + (A − R₀) / (1 + (s_mid / s)^B), the form of ScaleRL (arXiv 2510.13786): A is the
asymptote, s_mid the number of steps to half of the rise, B the steepness. R₀ is the first measured
point, and s counts from there. "Steps to a given level" is not reported: an arm that never reaches
the level has no value, and a curve that stays near the level has a random one.
"""

import functools
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from rec_experiments.analysis.results.runs import Row
from rec_experiments.analysis.results.statistics import NoValue, best, final, measured

FEWEST_POINTS = 6  # after the first: twice as many as there are parameters
SMALLEST_RISE = 0.06  # two standard errors of an evaluation of 256 problems, 0.03 at worst
LARGEST_FALL = 0.2  # as a share of the best: about twice that of a level curve with noise
HIGHEST = 1.0  # possible accuracy, or reward without a bonus
ROUNDING = 1e-3  # a fitted asymptote closer to the bound counts as at the bound
STEEPNESS = (0.2, 10.0)  # of B; with 10 the middle four fifths of the rise take 0.45 s_mid

FORM = "R(s) = R0 + (A − R0) / (1 + (midpoint / s)^exponent)"


@dataclass(frozen=True, slots=True)
class Curve:
    """asymptote: A, in units of the metric. midpoint: s_mid, in steps. exponent: B."""

    asymptote: float
    midpoint: float
    exponent: float


PARAMETERS = tuple(field.name for field in fields(Curve))


def fit(rows: list[Row], metric: str) -> Curve:
    """Fit the curve by least squares to all points but the first.

    Raises NoValue if the points are too few, do not rise or fall after their best, if the fit does
    not converge, or if the points do not determine it: half of the rise lies before the second
    point or after the last, or the asymptote is at its bound, far above the last points.
    """
    steps, values = measured(rows, metric)
    if len(values) <= FEWEST_POINTS:
        raise NoValue(f"{len(values)} points are too few for a fit")
    end, top = final(rows, metric), best(rows, metric)
    if end - values[0] < SMALLEST_RISE:
        raise NoValue("the curve does not rise")
    if end < (1 - LARGEST_FALL) * top:
        raise NoValue("the curve falls after its best")
    found, highest = _least_squares(tuple(steps), tuple(values)), max(HIGHEST, *values)
    if found is None:
        raise NoValue("the fit does not converge")
    if found.midpoint < steps[1] - steps[0]:
        raise NoValue("half of the rise lies before the second point")
    if found.midpoint > steps[-1] - steps[0]:
        raise NoValue("the curve has not passed half of its rise")
    if found.asymptote > highest - ROUNDING and end < highest - SMALLEST_RISE:
        raise NoValue("the asymptote is not determined")
    return found


@functools.lru_cache(maxsize=4096)  # figures share runs
def _least_squares(steps: tuple[int, ...], values: tuple[float, ...]) -> Curve | None:
    """The least-squares fit, None if it does not converge."""
    from scipy.optimize import curve_fit  # slow to import, and not every table has a fit

    log_s, after = np.log(np.array(steps[1:]) - steps[0]), np.array(values[1:])
    initial, highest = values[0], max(HIGHEST, *values)

    def curve(log_s: NDArray, asymptote: float, log_mid: float, exponent: float) -> NDArray:
        return initial + (asymptote - initial) * expit(exponent * (log_s - log_mid))

    # One unit of log s beyond the steps is enough to recognise a curve before half of its rise.
    bounds = ([initial, log_s[0] - 1, STEEPNESS[0]], [highest, log_s[-1] + 1, STEEPNESS[1]])
    half_way = np.argmax(after >= (initial + after[-1]) / 2)  # the first point above it
    start = [after.max(), log_s[half_way], 1.0]
    try:
        (asymptote, log_mid, exponent), _ = curve_fit(curve, log_s, after, start, bounds=bounds)
    except RuntimeError:
        return None
    return Curve(float(asymptote), float(np.exp(log_mid)), float(exponent))
