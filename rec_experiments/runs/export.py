"""Writing a run's model as a transformers folder."""

import contextlib
import os
import secrets
from pathlib import Path

from safetensors import SafetensorError

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.files import remove, sync_folder, writing
from rec_experiments.policy.models import Adapted
from rec_experiments.runs.saved import model_of, source_of


def export(run: Path, out: Path, step: int | None, adapter: bool = False) -> int:
    """Write model and tokenizer to the folder `out`, or leave nothing behind.

    step: gradient steps of the checkpoint; None for the newest one. Returns them. adapter: write
    the adapter alone, as peft does; otherwise it is merged into the weights.
    Raises UserError if `out` exists or cannot be written, or if there is no adapter.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; choose another folder")
    source = source_of(run)
    if adapter and not isinstance(source, Adapted):
        raise UserError(f"part=adapter: {run} trained all weights; leave the option out")
    model, step = model_of(run, source, step, merged=not adapter)
    partial = out.with_name(f".{secrets.token_hex(8)}.partial")
    made = [folder for folder in out.parents if not folder.exists()]  # innermost first
    with writing(out):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(partial)
            source.tokenizer().save_pretrained(partial)
            os.replace(partial, out)
        except BaseException as error:
            with contextlib.suppress(OSError):
                remove(partial)
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if isinstance(error, SafetensorError):  # raised on a full disk
                raise UserError(f"{out}: cannot be written ({first_line(error)})") from error
            raise
        sync_folder(out.parent)
    return step
