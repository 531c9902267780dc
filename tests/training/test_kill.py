"""The real command, killed at random moments with SIGKILL, resumed (make kill-test: 20 times)."""

import pytest
from kill_and_resume import kill_and_resume

IN_FLIGHT = ("sync=in_flight", "sync.interval=1", "sync.tokens=5", "sync.late=drop")


@pytest.mark.parametrize(
    "overrides", [(), pytest.param(IN_FLIGHT, marks=pytest.mark.long)], ids=["whole", "in flight"]
)
def test_kill_and_resume(tmp_path, overrides):
    kill_and_resume(kills=2, seed=0, root=tmp_path, overrides=overrides)
