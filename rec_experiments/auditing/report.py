"""What an audit found, for a terminal, a program, or a browser."""

import html
import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a batch.

    fault: its name. evidence: what was measured, and how often a correct batch would show it.
    effect: on the gradient. change: what to change.
    """

    fault: str
    evidence: str
    effect: str
    change: str


@dataclass(frozen=True, slots=True)
class Report:
    """statistics: by name, as `statistics.measure` has them. findings: in the order of the tests.
    untold: tests that the batch lacks columns for, with these columns. unread: columns that no test
    knows."""

    statistics: dict[str, Any]
    findings: list[Finding]
    untold: dict[str, str]
    unread: tuple[str, ...] = ()

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def text(self) -> str:
        """One screen."""
        lines = [*self._staleness(), ""]
        for finding in self.findings:
            lines += [f"FOUND {finding.fault}: {finding.evidence}"]
            lines += [f"      effect: {finding.effect}", f"      change: {finding.change}"]
        if not self.findings:
            lines += ["no finding"]
        if self.untold:
            lines += ["", "not tested, for want of columns:"]
            lines += [f"  {test}: needs {columns}" for test, columns in self.untold.items()]
        if self.unread:
            lines += [f"columns that no test reads: {', '.join(self.unread)}"]
        return "\n".join(lines)

    def html(self) -> str:
        """A page that loads nothing from elsewhere."""
        body = html.escape(self.text())
        head = '<!doctype html><meta charset="utf-8"><title>audit</title>'
        style = "font:15px/1.5 monospace;max-width:100ch;margin:3em auto;white-space:pre-wrap"
        return f'{head}<body style="{style}">{body}</body>\n'

    def _staleness(self) -> list[str]:
        found = self.statistics
        lines = [f"batch: {found['responses']} responses, {found['tokens']} tokens"]
        if length := found["length"]:
            lines[0] += " (" + "{min:.0f} to {max:.0f}, mean {mean:.1f})".format(**length)
        if "age" in found:
            lines += [
                "age: {min:.0f} to {max:.0f} gradient steps, mean {mean:.1f}".format(**found["age"])
            ]
        if "ratio" in found:
            lines += [
                "ρ: mean {mean:.4f}, median {median:.4f}, largest {max:.4g}; (log ρ)²: mean "
                "{mean_square:.2g}, median {median_square:.2g}".format(**found["ratio"]),
                "effective sample size: {ess_tokens:.1%} of tokens, {ess_responses:.1%} of "
                "responses".format(**found["ratio"]),
            ]
        for part in found.get("ratio_by_age", []):
            ages = (
                f"{part['from']}" if part["from"] == part["to"] else f"{part['from']}–{part['to']}"
            )
            lines += [
                f"  age {ages:>7}: {part['tokens']:>7} tokens, mean ρ {part['mean']:.4f}, (log ρ)² "
                f"mean {part['mean_square']:.2g}, median {part['median_square']:.2g}"
            ]
        if "mismatch" in found:
            lines += [
                "sampler against trainer, |Δ log π|: mean {mean:.2g}, median {median:.2g}, largest "
                "{max:.2g}".format(**found["mismatch"])
            ]
        if clips := found.get("clipped"):
            shares = sorted(clips.items(), key=lambda each: -each[1])
            cut = ", ".join(f"{name} {share:.2%}" for name, share in shares if share)
            lines += [f"clips would cut: {cut or 'nothing'}"]
        if "loss" in found:
            lines += [f"loss {found['loss']['value']:.6g}: {found['loss']['is']}"]
        return lines
