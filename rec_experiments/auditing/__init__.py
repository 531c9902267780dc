"""An audit of a training batch of any trainer: how far off-policy it is, and what is wrong with it.

`audit` reads columns by name, from a file or from tensors. A test is a function of the batch that
returns findings, or raises Missing with the columns that it lacks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rec_experiments.auditing import losses, rows, versions
from rec_experiments.auditing.batch import Batch, Missing, of, read
from rec_experiments.auditing.report import Finding, Report
from rec_experiments.auditing.statistics import measure

TESTS: dict[str, Callable[[Batch], list[Finding]]] = {
    "same weights agree": versions.same_weights,
    "shifted log-probabilities": versions.shift,
    "precision": versions.dtypes,
    "ages": versions.ages,
    "reference": versions.reference,
    "prompt tokens in the mask": rows.prompt_in_mask,
    "end token": rows.end_token,
    "doubled BOS": rows.doubled_bos,
    "mixed groups": rows.mixed_groups,
    "advantages": rows.advantages,
    "short answers preferred": rows.short_answers,
    "normalisation": losses.normalisation,
    "double correction": losses.double_correction,
}


def audit(
    batch: Path | str | None = None, /, *, model: Path | str | None = None, **columns: Any
) -> Report:
    """Audit a batch: a file, or its columns as tensors, arrays or lists.

    docs/audit.md lists the columns; all are optional but one that has a value for each token.

    Args:
        batch: a file .pt, .safetensors, .parquet or .jsonl, instead of columns.
        model: a transformers folder with the policy that drew the batch, which then scores it.

    Raises:
        UserError: the batch cannot be read, or its columns contradict each other.
    """
    found = of(columns) if batch is None else read(Path(batch))
    tests = dict(TESTS)
    untold = {}
    if model is None:
        untold["tokens under the model"] = "the model that drew them"
    else:
        from rec_experiments.auditing import scoring  # imports transformers

        found, scores = scoring.with_model(found, Path(model))
        tests["tokens under the model"] = lambda batch: scoring.sampling(batch, scores)
    findings: dict[str, Finding] = {}
    for name, test in tests.items():
        try:
            for finding in test(found):
                findings.setdefault(finding.fault, finding)
        except Missing as missing:
            untold[name] = str(missing)
    return Report(measure(found) | _loss(found), [*findings.values()], untold, found.unread)


def _loss(batch: Batch) -> dict[str, Any]:
    try:
        matches, _ = losses.match(batch)
    except Missing:
        return {}
    is_ = str(matches[0]) if matches else "none of the combinations known here"
    return {"loss": {"value": batch.loss, "is": is_}}
