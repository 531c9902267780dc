"""Files that are whole or absent, and the cache folder."""

import pwd

from rec_experiments.common import files


def test_a_digest_tells_damage(tmp_path):
    file = tmp_path / "weights.pt"
    assert files.read_whole(file) is None
    files.write_with_digest(file, b"weights")
    assert files.read_whole(file) == b"weights"
    file.write_bytes(b"weight")
    assert files.read_whole(file) is None
    files.write_with_digest(file, b"weights")
    (tmp_path / "weights.sha256").unlink()
    assert files.read_whole(file) is None


def test_a_container_without_a_home_folder_has_a_cache(monkeypatch):
    monkeypatch.delenv("REC_EXPERIMENTS_CACHE")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(files.cache_folder()) == "/home/me/.cache/rec_experiments"

    def nobody(number):
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert files.cache_folder().is_absolute()
