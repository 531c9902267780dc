"""How often the audit names a planted fault, and how often it finds something in clean batches.

    python tests/benchmarks/audit.py --out docs/results/audit.csv

Batches of 64 responses: of the miniature with --seeds seeds; with --smollm2 also of SmolLM2, once;
clean ones of --clean batches of this project's runs under every schedule, of both sides in bfloat16
and with a loss. Further: time and memory for 768 responses of 300 tokens.
"""

import argparse
import collections
import csv
import itertools
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "auditing")]

import made  # noqa: E402
import planted  # noqa: E402

import rec_experiments  # noqa: E402

SMALL = ("batch_size=8", "eval_problems=8", "kl_every=0", "steps=60")
SCHEDULES = (
    "sync=on_policy", "sync=interval5", "sync=interval20", "sync=interval50", "sync=offset5",
    "sync=offset10", "sync=offline", "sync=in_flight",
)  # fmt: skip
RUNS = [(*SMALL, schedule, "algo=tis", f"seed={n}") for n, schedule in enumerate(SCHEDULES)]
RUNS += [
    (*SMALL, "sync=interval5", "dataset=arithmetic", "algo=gspo"),
    (*SMALL, "sync=offset5", "dataset=arithmetic", "algo=rloo", "seed=1"),
]


def faults(lab: planted.Lab, seeds: int, model: str) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        lab.model.save_pretrained(folder)
        for name in planted.plants(lab, 0):
            named, extra = 0, collections.Counter()
            for seed in range(seeds):
                fault, make, needs_model = planted.plants(lab, seed)[name]
                columns = {**make()}
                report = rec_experiments.audit(model=folder if needs_model else None, **columns)
                found = [finding.fault for finding in report.findings]
                named += fault in found
                extra.update({*found} - {fault})
            yield {
                "model": model, "batches": "planted", "name": name, "fault": fault,
                "needs_model": needs_model, "count": seeds, "named": named,
                "others": " ".join(f"{k}:{n}" for k, n in extra.items()),
            }  # fmt: skip


def clean(lab: planted.Lab, count: int) -> Iterator[dict]:
    """A third with a loss, or in bfloat16; the others from runs."""
    of_lab = count // 6

    def with_loss(seed: int) -> dict:
        batch = lab.batch(seed, drawn_by=lab.behind if seed % 2 else lab.model)
        return {**batch, "loss": planted.loss(batch, power=0), "aggregation": "token_mean"}

    sources = {
        "with a loss": [with_loss, of_lab],
        "bfloat16": [lambda n: planted.low(lab, n), of_lab],
    }
    for name, (make, number) in sources.items():
        yield counted(name, (make(1000 + n) for n in range(number)))
    each = (count - 2 * of_lab) // len(RUNS)
    for n, run in enumerate(RUNS):
        number = each if n else count - 2 * of_lab - each * (len(RUNS) - 1)
        yield counted(" ".join(run[len(SMALL) :]), made.of_run(number, *run))


def counted(name: str, batches) -> dict:
    found, count = collections.Counter(), 0
    for batch in batches:
        count += 1
        for finding in rec_experiments.audit(**batch).findings:
            found[finding.fault] += 1
            print("  ", name, finding.fault, finding.evidence, file=sys.stderr)
    return {
        "model": "miniature", "batches": "clean", "name": name, "count": count,
        "others": " ".join(f"{k}:{n}" for k, n in found.items()),
    }  # fmt: skip


def large() -> dict:
    """Time and peak memory of 768 x 300 tokens without a model."""
    shape, rng = (768, 300), torch.Generator().manual_seed(0)
    logp = -torch.rand(shape, generator=rng)
    columns = {
        "tokens": torch.randint(0, 50_000, shape, generator=rng),
        "mask": torch.arange(300) < torch.randint(100, 301, (768, 1), generator=rng),
        "logp": logp,
        "behavior_logp": logp - 0.01 * torch.rand(shape, generator=rng),
        "sampler_logp": logp - 0.01 * torch.rand(shape, generator=rng),
        "rewards": torch.randint(0, 2, (768,), generator=rng).double(),
        "advantages": torch.randn(768, generator=rng),
        "groups": torch.arange(768) // 8,
        "versions": torch.randint(0, 5, (768,), generator=rng),
        "step": 5, "loss": 0.1, "eos": 2,
    }  # fmt: skip
    started = time.process_time()
    rec_experiments.audit(**columns)
    return {
        "model": "768 x 300", "batches": "large", "name": "seconds and peak MB",
        "count": round(time.process_time() - started, 1),
        "named": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="0 for none of the miniature")
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = [iter([large()])]
    if options.seeds:
        lab = planted.miniature()
        parts += [faults(lab, options.seeds, "miniature"), clean(lab, options.clean)]
    if options.smollm2:
        parts.append(faults(planted.smollm2(), 1, "SmolLM2"))
    fields = ("model", "batches", "name", "fault", "needs_model", "count", "named", "others")
    with options.out.open("w", newline="") if options.out else sys.stdout as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        for row in itertools.chain(*parts):
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
