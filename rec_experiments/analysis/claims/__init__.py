"""The papers' claims, judged on the runs of several seeds.

claims.yaml   the claims of arXiv 2509.24203 and 2505.22257
definitions   what a claim consists of
judge         from the runs to a verdict: premises, primary endpoint, control
decision      what an interval says about an endpoint
tables        verdicts as a card, text, Markdown and JSON
"""

from collections.abc import Callable, Iterable, Sequence

import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.claims.definitions import CLAIMS, Claim
from rec_experiments.analysis.claims.judge import Setting, Verdict, judge
from rec_experiments.analysis.results.figure import FigureRuns, NoRuns, figure_runs
from rec_experiments.common.errors import UserError
from rec_experiments.sweeps import SetByArm

__all__ = ["CLAIMS", "RATE", "about", "commands", "figures", "judged", "settings"]

RATE = "optimizer.learning_rate"


def settings(scale: str, overrides: Sequence[str]) -> list[Setting]:
    """Where claims are judged at a scale: at each of its rates, or at that of overrides which name
    a rate or a setting, on its seeds or those that an override names."""
    chosen = {each.partition("=")[0] for each in overrides}
    seeds = None if "seed" in chosen else sweeps.claim_seeds(scale)
    rates = sweeps.claim_rates(scale)
    if not rates or chosen & {RATE, "setting"}:
        return [Setting(scale=scale, seeds=seeds, own=RATE not in chosen)]
    return [Setting(scale=scale, rate=rate, own=rate == rates[0], seeds=seeds) for rate in rates]


def figures(setting: Setting) -> list[str]:
    """The figures that the claims need in a setting, in the order of the paper."""
    return _figures(claim for claim in CLAIMS if setting.own or not claim.own_rate_only)


def _figures(claims: Iterable[Claim]) -> list[str]:
    needed = {name for claim in claims for name in claim.figures}
    return [name for name in sweeps.names() if name in needed]


def judged(
    setting: Setting,
    found: pandas.DataFrame,
    overrides: Sequence[str],
    progress: Callable[[str], object] = lambda name: None,
) -> list[Verdict]:
    """A verdict on every claim in a setting. found: of `table.find`. progress: is called with the
    name of each figure before it is read. Raises UserError for a wrong override."""
    lines = [*_overrides(setting), *overrides]
    data: dict[str, FigureRuns] = {}
    for name in figures(setting):
        progress(name)
        data |= _read(name, found, lines)
    return [judge(claim, data, setting) for claim in CLAIMS]


def about(
    names: Iterable[str], scale: str, found: pandas.DataFrame, overrides: Sequence[str]
) -> list[Verdict]:
    """Verdicts on the claims that some figures judge, at the settings' rate or an override's."""
    chosen = [claim for claim in CLAIMS if claim.primary.figure in set(names)]
    setting = settings(scale, overrides)[0]
    lines = [*_overrides(setting), *overrides]
    data: dict[str, FigureRuns] = {}
    for name in _figures(chosen):
        try:
            data |= _read(name, found, lines)
        except SetByArm:
            continue
    return [judge(claim, data, setting) for claim in chosen]


def commands(scale: str) -> list[str]:
    """The command lines of the sweeps that make the runs of every claim at a scale."""
    return [
        " ".join([f"python -m rec_experiments -m sweep={name}", *_overrides(setting)])
        for setting in settings(scale, [])
        for name in figures(setting)
    ]


def _overrides(setting: Setting) -> list[str]:
    seeds = [f"seed={','.join(map(str, setting.seeds))}"] if setting.seeds else []
    rate = [f"{RATE}={setting.rate}"] if setting.rate and not setting.own else []
    return [f"scale={setting.scale}", *seeds, *rate]


def _read(name: str, found: pandas.DataFrame, overrides: Sequence[str]) -> dict[str, FigureRuns]:
    """The figure by its name, if it has runs."""
    try:
        data = figure_runs(name, found, overrides)
    except NoRuns:
        return {}
    if data.swept:
        keys = ", ".join(data.swept)
        raise UserError(f"{keys}: claims are judged at one value of a key; give one")
    return {name: data}
