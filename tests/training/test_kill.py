"""The real command, killed at random moments with SIGKILL, resumed (make kill-test: 20 times)."""

from kill_and_resume import kill_and_resume


def test_kill_and_resume(tmp_path):
    assert kill_and_resume(kills=3, seed=0, root=tmp_path) == []
