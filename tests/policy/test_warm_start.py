"""What these tests lock: the cache of warm starts can be damaged, full or read-only, and no run
fails for it."""

import io
import math
import os
from pathlib import Path

import pytest
import torch

from rec_experiments import Experiment
from rec_experiments.common.errors import UserError
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.warm_start import kept, load_warm_start


class Maker:
    """Counts how often something is made."""

    def __init__(self) -> None:
        self.times, self.said = 0, []

    def __call__(self, file: Path) -> bytes:
        def make() -> bytes:
            self.times += 1
            return b"weights"

        return kept(file, make, "4 supervised steps", self.said.append)


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_made_once(tmp_path, maker):
    file = tmp_path / "cache" / "a.pt"
    assert [maker(file), maker(file)] == [b"weights", b"weights"]
    assert maker.times == 1
    assert maker.said == [f"warm start: 4 supervised steps, once, kept in {file}"]


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_damaged_file(tmp_path, maker, damage):
    file = tmp_path / "a.pt"
    maker(file)
    file.write_bytes(damage)
    assert maker(file) == b"weights"
    assert file.read_bytes() == b"weights"
    assert maker.said[1].endswith(f"kept in {file}, which was damaged")


def test_a_whole_file_with_something_else_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("rec_experiments.policy.warm_start.kept", lambda *arguments: b"else")
    experiment = Experiment.compose("dataset=arithmetic").settings
    tiny, dataset = experiment.model, experiment.dataset
    model = tiny.model()
    chat = ChatTemplate(tiny.tokenizer(), model)
    with pytest.raises(UserError, match=r"warm_start_\w+\.pt: holds no warm start of this model"):
        load_warm_start(tiny, dataset, model, chat, [], print, print)


def test_weights_that_are_not_finite_are_one_line(monkeypatch):
    experiment = Experiment.compose("dataset=arithmetic").settings
    tiny, dataset = experiment.model, experiment.dataset
    model = tiny.model()
    weights, buffer = model.state_dict(), io.BytesIO()
    torch.save(weights | {"model.norm.weight": weights["model.norm.weight"] * math.nan}, buffer)
    monkeypatch.setattr(
        "rec_experiments.policy.warm_start.kept", lambda *arguments: buffer.getvalue()
    )
    chat = ChatTemplate(tiny.tokenizer(), model)
    with pytest.raises(UserError, match=r"warm_start_\w+\.pt: its weights are not finite; remove"):
        load_warm_start(tiny, dataset, model, chat, [], print, print)


def test_cache_is_no_folder(tmp_path, maker):
    (tmp_path / "cache").write_text("a file")
    assert maker(tmp_path / "cache" / "a.pt") == b"weights"
    assert maker.said == [
        f"warm start: 4 supervised steps, not kept: {tmp_path / 'cache'}: File exists"
    ]


def test_full_disk(tmp_path, maker, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rec_experiments.policy.warm_start.write_with_digest", full)
    assert maker(tmp_path / "a.pt") == b"weights"
    assert maker.said[1] == f"the warm start is not kept: {tmp_path}: No space left on device"


def test_read_only_cache(tmp_path, maker, monkeypatch):
    file = tmp_path / "a.pt"
    maker(file)

    opened = os.open

    def read_only(path: str, flags: int, *others: int, **options: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, "Read-only file system")
        return opened(path, flags, *others, **options)

    def no_folder(*arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "mkdir", no_folder)
    assert maker(file) == b"weights"
    assert maker.times == 1


@pytest.mark.parametrize("steps", [0, 4])
def test_no_start_without_steps_or_demonstrations(steps, monkeypatch):
    """steps=0: the data set has demonstrations; otherwise it has none."""
    monkeypatch.setattr("rec_experiments.policy.warm_start.kept", pytest.fail)
    experiment = Experiment.compose(
        "dataset=arithmetic", f"model.warm_start.steps={steps}"
    ).settings
    tiny, dataset, said = experiment.model, object() if steps else experiment.dataset, []
    load_warm_start(tiny, dataset, None, None, [], said.append, print)
    assert said == ["the model has no warm start on this data set: expect an accuracy near 0"]
