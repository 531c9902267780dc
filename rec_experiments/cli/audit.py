"""Reads a dumped training batch of any trainer, measures how far off-policy it is, and names what
is wrong with it. The exit code is 1 if it finds something."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rec_experiments.cli.parser import file_ending, option, path
from rec_experiments.common.errors import printable
from rec_experiments.common.files import write_out


def main(
    batch: Annotated[
        Path,
        option(path, "a file .pt, .safetensors, .parquet or .jsonl; docs/audit.md lists columns"),
    ],
    *,
    model: Annotated[
        Path | None,
        option(path, "the transformers folder of the policy that drew the batch; it scores tokens"),
    ] = None,
    json: Annotated[bool, Parameter(help="print JSON, for programs")] = False,
    html: Annotated[
        Path | None, option(file_ending(".html"), "also write a page to this file, FILE.html")
    ] = None,
) -> None:
    from rec_experiments.auditing import audit  # imports torch

    report = audit(batch, model=model)
    if html:
        write_out(html, report.html().encode())
    print(report.json() if json else "\n".join(map(printable, report.text().splitlines())))
    if report.findings:
        sys.exit(1)
