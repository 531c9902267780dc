"""What all contestants share: the work, how they are told to do it, and what they report.

The driver (peers.py) starts each contestant in a process of its own and writes how many steps to
make; the contestant makes them and answers with a JSON line of what they took. Times are of the
processor where they are compared: on a machine with other work, a clock on the wall measures that.
"""

import contextlib
import ctypes
import json
import os
import pickle
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

NEVER_CLIPPED = 1e9  # every trainer computes its gradient's norm, and none changes the gradient


@dataclass(frozen=True, kw_only=True)
class Work:
    """One workload, the same for all.

    folder: holds the model as transformers saves it, `problems.json`, the task and the first
    batches drawn. overrides: what makes it an experiment of this project. prompts, group_size: of a
    batch. limit: most tokens of a response. context: most of a prompt with its response. interval:
    batches drawn from one version. hashed: rewards are a hash of the response and not the task's,
    so that every group is live.
    """

    folder: str
    overrides: list[str]
    prompts: int
    group_size: int
    limit: int
    context: int
    interval: int
    hashed: bool
    learning_rate: float

    @property
    def rows(self) -> int:
        return self.prompts * self.group_size

    @property
    def model(self) -> str:
        return f"{self.folder}/model"

    def save(self, task: Any) -> None:
        Path(self.folder, "work.json").write_text(json.dumps(asdict(self)))
        Path(self.folder, "task.pickle").write_bytes(pickle.dumps(task))

    @classmethod
    def load(cls, folder: str) -> "Work":
        return cls(**json.loads(Path(folder, "work.json").read_text()))

    def problems(self) -> list[dict[str, str]]:
        """{prompt, answer} in the order in which all train on them."""
        return json.loads(Path(self.folder, "problems.json").read_text())

    @cached_property
    def task(self) -> Any:
        """The data set, whose verifier judges."""
        return pickle.loads(Path(self.folder, "task.pickle").read_bytes())

    def reward(self, response: str, answer: str) -> float:
        """Of a response's text."""
        if self.hashed:
            return zlib.crc32(response.encode()) / 2**32
        return self.task.verify(response, answer).reward

    @property
    def per_version(self) -> int:
        """Prompts that are drawn from one version."""
        return self.prompts * self.interval

    def write_first_draw(self, prompts: list[list[int]], responses: list[list[dict]]) -> None:
        """What this project drew from the first version. All others get it as their own, so that
        their first gradients can be compared."""
        draw = {"prompts": prompts, "responses": responses}
        Path(self.folder, "first_draw.json").write_text(json.dumps(draw))

    def first_draw(self, prompts: list[list[int]], start: int = 0) -> list[dict]:
        """The responses to its prompts from number `start` on, row by row. Raises ValueError if
        these are others."""
        draw = json.loads(Path(self.folder, "first_draw.json").read_text())
        rows = slice(start, start + len(prompts))
        if prompts != draw["prompts"][rows]:
            raise ValueError("the contestants do not train on the same prompts in the same order")
        return [response for of_prompt in draw["responses"][rows] for response in of_prompt]


def keep_first_gradient(work: Work, name: str, model: Any) -> None:
    """Write the gradient of the first optimizer step of this process, as one vector."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def keep(*_: Any) -> None:
        hook.remove()
        with open(Path(work.folder, f"{name}.gradient"), "wb") as file:
            for parameter in model.parameters():
                parameter.grad.numpy().tofile(file)

    hook = register_optimizer_step_pre_hook(keep)


class Pace:
    """Makes a contestant stop after as many steps as the driver has asked for."""

    def __init__(self) -> None:
        self.wire = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is no answer

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Within, responses are drawn."""
        start = time.process_time()
        yield
        self.sampling_cpu += time.process_time() - start

    def ready(self) -> None:
        """All is loaded, and the next thing is a step."""
        self._say(cpu=time.process_time())
        self._wait()

    def stepped(self) -> None:
        """A step is done."""
        self.left -= 1
        if self.left:
            return
        seconds, cpu = time.perf_counter() - self.start, time.process_time() - self.cpu
        self._say(
            seconds=seconds,
            cpu=cpu,
            sampling_cpu=self.sampling_cpu,
            tokens=self.tokens,
            peak_bytes=_peak_bytes(),
        )
        self._wait()

    def _wait(self) -> None:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the C library on Linux
        if trim:
            trim(0)  # who waits leaves the memory to the others
        line = sys.stdin.readline()
        if not line:  # the driver has all it wants
            os._exit(0)
        self.left, self.tokens, self.sampling_cpu = int(line), 0, 0.0
        self.start, self.cpu = time.perf_counter(), time.process_time()

    def _say(self, **values: Any) -> None:
        self.wire.write(json.dumps(values) + "\n")


def _peak_bytes() -> int:
    """Of this program; getrusage would count what its parent held before."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
