"""A silent hub is asked once, and the errors say what to do."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from rec_experiments.common.files import HUB_PATIENCE

ASKS = """
from rec_experiments.common.errors import UserError
from rec_experiments.policy.models import Pretrained
from rec_experiments.datasets.loading import Source

model = Pretrained(
    path="owner/model", dtype="float32", compute_dtype="float32", attention="sdpa",
    gradient_checkpointing=False, packed=False,
    shared_prompts=False, compile_layers=False, chat_template_kwargs={},
)
rows = Source(hub="owner/rows", subset=None, split="train", file="train.jsonl")
for ask in (lambda: rows.read("train", None), model.tokenizer, model.model):
    try:
        ask()
    except UserError as error:
        print(error)
"""


@pytest.fixture
def silent() -> Iterator[tuple[str, list[None]]]:
    """The address of a server that hangs up, and a list with one entry per connection."""
    asked: list[None] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the server is closed
                    return
                asked.append(None)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked


def ask(tmp_path, **environment: str) -> list[str]:
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith(("_proxy", "offline"))}
    done = subprocess.run(
        [sys.executable, "-c", ASKS], cwd=tmp_path,
        env={**clean, "HF_HOME": str(tmp_path / "hub"), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Retrying" not in done.stderr
    return done.stdout.splitlines()


def test_a_silent_hub_is_asked_once(silent, tmp_path):
    address, asked = silent
    told = ask(tmp_path, HF_ENDPOINT=address)
    assert len(asked) == 1
    assert len(told) == 3
    for line, key, remedy in zip(
        told, ["dataset.train.hub=owner/rows: ", *["model.path=owner/model: "] * 2],
        ["dataset.path=FOLDER", *["hf download owner/model --local-dir FOLDER"] * 2], strict=True,
    ):  # fmt: skip
        assert line.startswith(key)
        assert f"{address} has not answered within {HUB_PATIENCE:g} s (" in line
        assert remedy in line


def test_an_offline_hub_is_not_asked(silent, tmp_path):
    address, asked = silent
    told = ask(tmp_path, HF_ENDPOINT=address, HF_HUB_OFFLINE="1")
    assert len(asked) == 0
    assert [line.count("HF_HUB_OFFLINE is set") for line in told] == [1, 1, 1]
