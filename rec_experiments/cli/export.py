"""`python -m rec_experiments export RUN OUT [step=N]`: a run's model as a transformers folder."""

import contextlib
import os
import secrets
from pathlib import Path

from rec_experiments.cli import command, help
from rec_experiments.cli.command import writing
from rec_experiments.config import schema
from rec_experiments.errors import UserError, first_line
from rec_experiments.files import remove, sync_folder

PAGE = help.Page(
    command="export",
    usage=("RUN OUT [step=N]",),
    about="Writes the model of a run with its tokenizer, as a folder for transformers and vLLM.",
    entries={
        "RUN": "a run folder, of one or several ranks",
        "OUT": "the folder to be; it must not be there yet",
        "step=N": "gradient steps after which there is a checkpoint; default: the newest",
    },
)


def export(run: Path, out: Path, step: int | None) -> int:
    """Write the folder, whole or not at all. Returns the gradient steps of its model."""
    from safetensors import SafetensorError

    from rec_experiments.runs.saved import (  # torch loads only for a real export
        experiment_of,
        model_of,
    )

    if out.exists():
        raise UserError(f"{out}: is there already; choose another folder")
    experiment = experiment_of(run, [])
    model, step = model_of(run, experiment, step)
    partial = out.with_name(f".{secrets.token_hex(8)}.partial")
    made = [folder for folder in out.parents if not folder.exists()]  # innermost first
    with writing(out):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(partial)
            experiment.model.tokenizer().save_pretrained(partial)
            os.replace(partial, out)
        except BaseException as error:
            with contextlib.suppress(OSError):
                remove(partial)
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if isinstance(error, SafetensorError):  # what it makes of a full disk
                raise UserError(f"out={out}: cannot be written ({first_line(error)})") from error
            raise
        sync_folder(out.parent)
    return step


def run(arguments: list[str]) -> None:
    line = command.parse(arguments, "step")
    for override in line.overrides:
        raise UserError(f"{override}: is not understood; allowed: step=N")
    if len(line.words) != 2:
        raise UserError("give two folders: the run's, and the one to be written")
    schema.register()
    folder, out = map(Path, line.words)
    step = export(folder, out, command.whole_number(line, "step"))
    print(f"{out}: the model of {folder} after {step} gradient steps")


def main(arguments: list[str]) -> None:
    command.plain_main(run, PAGE, arguments)
