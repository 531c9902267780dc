"""The cost of a help page, compared with a bare start of Python.

python benchmarks/start_up.py [rounds=20]

Processor seconds (user and system) of whole processes that take turns; the medians, and the median
of the ratios within a round.
"""

import resource
import statistics
import subprocess
import sys

BARE = ("-c", "pass")
ASKED = {
    "python -c pass": BARE,
    "python -m rec_experiments --help": ("-m", "rec_experiments", "--help"),
    "python -m rec_experiments claims --help": ("-m", "rec_experiments", "claims", "--help"),
    "python -m rec_experiments report --help": ("-m", "rec_experiments", "report", "--help"),
}


def seconds(arguments: tuple[str, ...]) -> float:
    """Processor seconds of `python ARGUMENTS`, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> None:
    found = [{name: seconds(arguments) for name, arguments in ASKED.items()} for _ in range(rounds)]
    bare = next(iter(ASKED))
    for name in ASKED:
        median = statistics.median(each[name] for each in found)
        ratio = statistics.median(each[name] / each[bare] for each in found)
        print(f"{name:42}{median:>8.3f} s{ratio:>8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1].removeprefix("rounds=")) if sys.argv[1:] else 20)
