"""Files that are whole or absent, written and checked piece by piece."""

import errno

import pytest
import torch

from rec_experiments import files


def test_a_state_is_streamed_and_known_whole(tmp_path):
    file = tmp_path / "state.pt"
    state = {"weights": torch.arange(1000.0), "step": 3}
    sizes = []

    def write(out):
        class Watched:
            def write(self, data):
                sizes.append(len(data))
                return out.write(data)

            def flush(self):
                out.flush()

        torch.save(state, Watched())

    files.stream_with_digest(file, write)
    assert sum(sizes) == file.stat().st_size
    assert max(sizes) < 4200  # the largest tensor, and not all
    assert files.is_whole(file)
    assert files.read_whole(file) == file.read_bytes()
    found = torch.load(file, mmap=True, weights_only=True)
    assert torch.equal(found["weights"], state["weights"])
    file.write_bytes(file.read_bytes()[:-1])
    assert not files.is_whole(file)
    assert files.read_whole(file) is None


def test_the_error_of_a_full_disk_is_not_hidden_by_torch(tmp_path, monkeypatch):
    """torch would end its archive on the same disk, and report that instead."""

    def full(self, data):
        self.error = OSError(errno.ENOSPC, "No space left on device")
        return len(data)

    monkeypatch.setattr(files._Digesting, "write", full)
    with pytest.raises(OSError, match="No space left"):
        files.stream_with_digest(tmp_path / "x.pt", lambda out: torch.save(torch.ones(9), out))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_whole_without_its_digest(tmp_path):
    (tmp_path / "x").write_bytes(b"data")
    assert not files.is_whole(tmp_path / "x")
    assert not files.is_whole(tmp_path / "absent")
