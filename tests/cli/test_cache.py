"""The cache folder: what is kept comes back as it was, or not at all."""

import os

import pytest

from rec_experiments import cache
from rec_experiments.cache import Kept


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keep(**values):
    kept = Kept("numbers", "1")
    for key, value in values.items():
        kept.add(key, value)
    return kept


def test_values_come_back_in_another_process():
    value = {"a": [1, 2.5, None, True], "ε": {"b": "π"}}
    assert (
        keep(x=value, y=1e-300).values == Kept("numbers", "1").values == {"x": value, "y": 1e-300}
    )
    assert Kept("numbers", "2").values == Kept("words", "1").values == {}


def test_the_last_value_of_a_key_counts():
    keep(x=1)
    keep(x=2)
    assert Kept("numbers", "1").values == {"x": 2}


@pytest.mark.parametrize("value", [{1: "a key that JSON makes a word"}, (1, 2), float("nan")])
def test_what_json_would_change_is_not_kept(value):
    assert keep(x=value).values["x"] is value
    assert Kept("numbers", "1").values == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-9],  # the last line is torn
        lambda content: content.replace(b"2222", b"2223"),  # another number, still JSON
        lambda content: content[: content.index(b"\n") + 1] + b"\x00\xff\n\n{}\n",
    ],
    ids=["torn", "changed", "garbage"],
)
def test_a_damaged_line_is_absent_and_is_made_again(folder, damage):
    keep(x=11, y=2222)
    [file] = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert Kept("numbers", "1").values == {"x": 11}
    for _ in range(2):  # the first new line may be written behind a torn one
        keep(y=2222)
    assert Kept("numbers", "1").values == {"x": 11, "y": 2222}


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "file" / "cache"))
    assert keep(x=1).values == {"x": 1}
    assert Kept("numbers", "1").values == {}


def test_old_files_are_removed_and_only_those_of_the_kind(folder):
    Kept("words", "0").add("x", "a")
    for version in range(cache.FILES_KEPT + 3):
        Kept("numbers", str(version)).add("x", version)
        os.utime(folder / f"numbers_{version}.jsonl", (version, version))
    left = {file.name for file in folder.iterdir()}
    newest = range(3, cache.FILES_KEPT + 3)
    assert left == {"words_0.jsonl", *(f"numbers_{version}.jsonl" for version in newest)}


@pytest.mark.parametrize(
    "keep_it", [cache.keep_text, lambda *words: keep(x=1)], ids=["text", "values"]
)
def test_a_link_or_a_pipe_in_a_shared_folder_is_neither_followed_nor_waited_for(
    keep_it, folder, tmp_path
):
    other = tmp_path / "other"
    other.write_text("mine\n")
    keep_it("numbers", "1", "a page")
    [file] = folder.iterdir()
    for lay in (lambda: file.symlink_to(other), lambda: os.mkfifo(file)):
        file.unlink()
        lay()
        keep_it("numbers", "1", "a page")
        assert Kept("numbers", "1").values == {}
        assert cache.text("numbers", "1") is None
        assert other.read_text() == "mine\n"
