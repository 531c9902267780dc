"""A verifier that misbehaves as it is told, in a module that a judging process loads quickly."""

import os
import signal
import subprocess
from pathlib import Path

from rec_experiments.common.problems import VerifierResult
from rec_experiments.datasets.verifiers import verifier_pool

RIGHT = VerifierResult(reward=1.0, accuracy=1.0)
WRONG = VerifierResult(reward=0.0, accuracy=0.0)


class Awkward(Exception):
    """Breaks a pipe that pickles it: it cannot be made from its message alone."""

    def __init__(self, first: str, second: str):
        super().__init__(first + second)


def scripted(response: str, answer: str) -> VerifierResult:
    """A verifier whose response says how it misbehaves."""
    act, _, argument = response.partition(" ")
    if act == "note":  # leaves its process id in a file
        Path(argument).write_text(str(os.getpid()))
    if act == "starts":  # a process that outlives the judging of the response
        pid = subprocess.Popen(["sleep", "600"]).pid
        Path(argument).write_text(str(pid))
        sum(range(10**18))
    if act == "hang":
        if argument:
            Path(argument).write_text(str(os.getpid()))
        sum(range(10**18))  # in C: no Python signal handler and no other thread gets a turn
    if act == "exit":
        os._exit(3)
    if act == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "killed-once":
        try:
            Path(argument).touch(exist_ok=False)
        except FileExistsError:
            return RIGHT
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "quit":
        raise SystemExit(0)
    if act == "raise":
        raise Awkward("this ", "fails")
    if act == "hoard":
        bytearray(2 * verifier_pool.MEMORY)
    return RIGHT if response == answer else WRONG
