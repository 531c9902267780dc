"""The papers' claims, judged on the runs of several seeds.

claims.yaml   the claims of arXiv 2509.24203 and 2505.22257
judge         what a claim consists of; from the runs to a verdict
decision      what an interval says about an endpoint
tables        verdicts as a card, text and Markdown
"""

from collections.abc import Iterable, Sequence

import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.claims.judge import CLAIMS, Claim, Setting, Verdict, judge
from rec_experiments.analysis.results.figure import NoRuns, figure_runs
from rec_experiments.common.errors import UserError

__all__ = ["CLAIMS", "RATE", "commands", "judged", "settings"]

RATE = "optimizer.learning_rate"


def settings(scale: str, overrides: Sequence[str] = ()) -> list[Setting]:
    """Where claims are judged at a scale: at each of its rates, or at that of overrides which name
    a rate or a setting, on its seeds or those that an override names."""
    chosen = {each.partition("=")[0] for each in overrides}
    seeds = None if "seed" in chosen else sweeps.claim_seeds(scale)
    rates = sweeps.claim_rates(scale)
    if not rates or chosen & {RATE, "setting"}:
        return [Setting(scale=scale, seeds=seeds, own=RATE not in chosen)]
    return [Setting(scale=scale, rate=rate, own=rate == rates[0], seeds=seeds) for rate in rates]


def judged(
    claims: Iterable[Claim], setting: Setting, found: pandas.DataFrame, overrides: Sequence[str]
) -> list[Verdict]:
    """A verdict on each of the claims in a setting. found: of `table.find`. Raises UserError for a
    wrong override."""
    claims, data = [*claims], {}
    for name in _figures(claims, setting):
        try:
            data[name] = figure_runs(name, found, [*_overrides(setting), *overrides])
        except (NoRuns, sweeps.SetByArm):
            continue
        if keys := ", ".join(data[name].swept):
            raise UserError(f"{keys}: claims are judged at one value of a key; give one")
    return [judge(claim, data, setting) for claim in claims]


def _figures(claims: Iterable[Claim], setting: Setting) -> list[str]:
    """The figures that the claims need in a setting, in the order of the paper."""
    needed = {
        name for each in claims if setting.own or not each.own_rate_only for name in each.figures
    }
    return [name for name in sweeps.names() if name in needed]


def commands(scale: str) -> list[str]:
    """The command lines of the sweeps that make the runs of every claim at a scale."""
    return [
        " ".join([f"python -m rec_experiments -m sweep={name}", *_overrides(setting)])
        for setting in settings(scale)
        for name in _figures(CLAIMS, setting)
    ]


def _overrides(setting: Setting) -> list[str]:
    seeds = [f"seed={','.join(map(str, setting.seeds))}"] if setting.seeds else []
    rate = [f"{RATE}={setting.rate}"] if setting.rate and not setting.own else []
    return [f"scale={setting.scale}", *seeds, *rate]
