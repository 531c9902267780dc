"""The papers' claims, judged on the runs of several seeds.

definitions   the claims of arXiv 2509.24203 and 2505.22257
verdict       from the runs to a verdict: premises, primary endpoint, control
decision      what an interval says about an endpoint
paper_curves  the paper's own curves as runs, to try the claims on
tables        verdicts as a card, text, Markdown and JSON
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rec_experiments import sweeps
from rec_experiments.analysis.claims.definitions import CLAIMS
from rec_experiments.analysis.claims.verdict import Claim, Setting, Verdict, judge
from rec_experiments.analysis.results.figure_data import (
    FigureData,
    NoRuns,
    chooses_seeds,
    claim_rates,
    claim_seeds,
    collect,
)
from rec_experiments.errors import UserError
from rec_experiments.sweeps import SetByArm

__all__ = ["CLAIMS", "RATE", "about", "commands", "judged", "read", "settings"]

RATE = "optimizer.learning_rate"


def settings(scale: str, overrides: list[str]) -> list[Setting]:
    """Where claims are judged at a scale: at each of its rates, or at that of overrides
    which name a rate or a setting, on its seeds or those that an override names."""
    seeds = None if chooses_seeds(overrides) else claim_seeds(scale)
    rates = claim_rates(scale)
    chosen = {each.partition("=")[0] for each in overrides}
    if not rates or chosen & {RATE, "setting"}:
        return [Setting(scale=scale, seeds=seeds, own=RATE not in chosen)]
    return [Setting(scale=scale, rate=rate, own=rate == rates[0], seeds=seeds) for rate in rates]


def read(
    names: Iterable[str],
    folders: list[Path] | None,
    overrides: list[str],
    progress: Callable[[str], object] = lambda name: None,
    without: tuple[type[UserError], ...] = (NoRuns,),
) -> dict[str, FigureData]:
    """Those of the figures that have runs, with the seeds that claims are judged on. progress: is
    called with the name of each figure before it is read. without: the errors of figures that are
    left out."""
    found = {}
    for name in names:
        progress(name)
        try:
            found[name] = collect(name, folders, overrides, for_claims=True)
        except without:
            continue
    return found


def judged(
    setting: Setting,
    folders: list[Path] | None,
    overrides: list[str],
    progress: Callable[[str], object] = lambda name: None,
) -> list[Verdict]:
    """A verdict on every claim in a setting. Raises UserError for a wrong override."""
    data = read(
        _needed(setting),
        folders,
        [f"scale={setting.scale}", *_lines(setting), *overrides],
        progress,
    )
    return [judge(claim, data, setting) for claim in CLAIMS]


def commands(scale: str) -> list[str]:
    """The command lines of the sweeps that make the runs of every claim at a scale."""
    return [
        " ".join([f"python -m rec_experiments -m sweep={name} scale={scale}", *_lines(setting)])
        for setting in settings(scale, [])
        for name in _needed(setting)
    ]


def about(
    names: Iterable[str],
    scale: str,
    data: Mapping[str, FigureData],
    folders: list[Path] | None,
    overrides: list[str],
) -> list[Verdict]:
    """Verdicts on the claims that some figures judge, at the settings' rate or an override's.

    data: figures that have been read with the seeds of claims; others are read.
    """
    chosen = [claim for claim in CLAIMS if claim.primary.figure in set(names)]
    setting = settings(scale, overrides)[0]
    lines = [*_lines(setting), *overrides]
    missing = [name for name in _figures(chosen) if name not in data]
    found = {**data, **read(missing, folders, lines, without=(NoRuns, SetByArm))}
    return [judge(claim, found, setting) for claim in chosen]


def _lines(setting: Setting) -> list[str]:
    """The overrides of a setting at its scale."""
    seeds = [f"seed={','.join(map(str, setting.seeds))}"] if setting.seeds else []
    rate = [f"{RATE}={setting.rate}"] if setting.rate and not setting.own else []
    return seeds + rate


def _needed(setting: Setting) -> list[str]:
    return _figures(claim for claim in CLAIMS if setting.own or not claim.own_rate_only)


def _figures(claims: Iterable[Claim]) -> list[str]:
    """The figures that some claims need, in the order of the paper."""
    needed = {name for claim in claims for name in claim.figures}
    return [name for name in sweeps.names() if name in needed]
