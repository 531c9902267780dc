"""What an audit found, for a terminal, a program, or a browser."""

import html
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

FAULTS: dict[str, str] = yaml.safe_load(
    (Path(__file__).parent / "faults.yaml").read_text(encoding="utf-8")
)
HEAD = '<!doctype html><meta charset="utf-8"><title>audit</title>'
STYLE = "font:15px/1.5 monospace;max-width:100ch;margin:3em auto;white-space:pre-wrap"
# A line of statistics, by the name of its part.
LINES = {
    "length": "length: {min:.0f} to {max:.0f} tokens, mean {mean:.1f}",
    "age": "age: {min:.0f} to {max:.0f} gradient steps, mean {mean:.1f}",
    "ratio": (
        "ρ: mean {mean:.4f}, median {median:.4f}, largest {max:.4g}; (log ρ)²: mean "
        "{mean_square:.2g}, median {median_square:.2g}\n"
        "effective sample size: {ess_tokens:.1%} of tokens, {ess_responses:.1%} of responses"
    ),
    "ratio_by_age": (
        "  age {min} to {max}: {tokens} tokens, mean ρ {mean:.4f}, (log ρ)² mean "
        "{mean_square:.2g}, median {median_square:.2g}"
    ),
    "mismatch": (
        "sampler against trainer, |Δ log π|: mean {mean:.2g}, median {median:.2g}, largest "
        "{max:.2g}"
    ),
    "loss": "loss {value:.6g}: {is}",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a batch.

    fault: a name in faults.yaml. evidence: what was measured, and how often a correct batch would
    show it. effect: on the gradient.
    """

    fault: str
    evidence: str
    effect: str

    @property
    def change(self) -> str:
        """What to change."""
        return FAULTS[self.fault]


@dataclass(frozen=True, slots=True)
class Report:
    """statistics: by name, as `statistics.measure` has them. findings: in the order of the tests.
    untold: tests that the batch lacks columns for, with these columns. unread: columns that no test
    knows."""

    statistics: dict[str, Any]
    findings: list[Finding]
    untold: dict[str, str]
    unread: tuple[str, ...]

    def json(self) -> str:
        """The fields, and what to change."""
        findings = [{**asdict(each), "change": each.change} for each in self.findings]
        return json.dumps({**asdict(self), "findings": findings}, indent=1)

    def html(self) -> str:
        """A page that loads nothing from elsewhere."""
        return f'{HEAD}<body style="{STYLE}">{html.escape(self.text())}</body>\n'

    def text(self) -> str:
        """One screen."""
        lines = ["{responses} responses, {tokens} tokens".format(**self.statistics)]
        for name, line in LINES.items():
            values = self.statistics.get(name, [])
            parts = values if isinstance(values, list) else [values]
            lines += [line.format(**part) for part in parts]
        if clips := self.statistics.get("clipped"):
            shares = sorted(clips.items(), key=lambda each: -each[1])
            cut = ", ".join(f"{name} {share:.2%}" for name, share in shares if share)
            lines.append(f"clips would cut: {cut or 'nothing'}")
        for finding in self.findings:
            lines += ["", f"FOUND {finding.fault}: {finding.evidence}"]
            lines += [f"  effect: {finding.effect}", f"  change: {finding.change}"]
        lines += [] if self.findings else ["", "no finding"]
        if self.untold:
            lines += ["", "not tested, for want of columns:"]
            lines += [f"  {test}: needs {columns}" for test, columns in self.untold.items()]
        if self.unread:
            lines.append(f"columns that no test reads: {', '.join(self.unread)}")
        return "\n".join(lines)
