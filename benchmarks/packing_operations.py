"""Operations of a gradient step with padded, packed and shared passes, counted.

Run `REC_DATA=FOLDER python benchmarks/packing_operations.py`, FOLDER with gsm8k/train.jsonl. Rows
are 96 questions of GSM8K, drawn by lot, each with 8 responses of the lengths of solutions, drawn by
lot too, four bytes a token. They are cut into passes as training does; each pass goes forward and
backward through the trainer's own code, on tensors without values, and torch counts its matrix
products. That is done with models of one and of two layers of the shape, and the other layers
follow. Attention's are counted as `sdpa` computes them with a mask, all pairs of a row; `within`
has those of pairs of one sequence alone, as kernels for variable lengths compute them.
"""

import argparse
import datetime
import json
import os
import random
import warnings
from pathlib import Path

import torch
import yaml
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from rec_experiments.distributed import ALONE
from rec_experiments.plan import budget, memory
from rec_experiments.policy.batching import Limits, Pass, TokenSequence, passes
from rec_experiments.policy.logprobs import ForwardPass, is_large
from rec_experiments.types import Sequences

GROUPS, K = 96, 8  # of a batch
TEMPLATE = 60  # tokens of a prompt that are not the question
ATTENTION = {torch.ops.aten.bmm}
LAYERS = (1, 2)
LAYOUTS = ("padded", "packed", "shared")


def sampled(folder: Path) -> list[TokenSequence]:
    lines = (folder / "gsm8k" / "train.jsonl").read_text().splitlines()
    lot = random.Random(0)
    asked = [json.loads(line)["question"] for line in lot.sample(lines, GROUPS)]
    said = [json.loads(line)["answer"] for line in lot.sample(lines, GROUPS * K)]
    return [
        TokenSequence(TEMPLATE + len(asked[n // K]) // 4, 1 + len(s) // 4, n // K, [n])
        for n, s in enumerate(said)
    ]


def counted(shape: dict, parts: list[Pass], layout: dict[str, bool]) -> tuple[float, float]:
    """Operations of all passes: of attention, and of the other matrix products."""
    forward = ForwardPass(pad_id=0, temperature=1.0, compute_dtype=torch.float32, **layout)
    attention = others = 0
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(memory.configuration(shape))
    batches = [
        forward.layout(
            [plain],
            Sequences.of(
                [[s.group] * s.prompt for s in part.sequences],
                [[0] * s.response for s in part.sequences],
            ),
        )
        for part in parts
    ]
    with warnings.catch_warnings(action="ignore"), FakeTensorMode(allow_non_fake_inputs=True):
        model = AutoModelForCausalLM.from_config(
            memory.configuration(shape), attn_implementation="eager"
        ).train()
        for part, batch in zip(parts, batches, strict=True):
            with FlopCounterMode(display=False) as counter:
                forward.score(model, batch, chunked=part.chunked).logp_BT.sum().backward()
            for operation, number in counter.get_flop_counts()["Global"].items():
                if operation in ATTENTION:
                    attention += number
                else:
                    others += number
    return attention, others


def of_all_layers(shape: dict, parts: list[Pass], layout: dict[str, bool]) -> tuple[float, float]:
    few, more = (counted({**shape, "num_hidden_layers": n}, parts, layout) for n in LAYERS)
    beyond = shape["num_hidden_layers"] - LAYERS[0]
    attention, others = (a + beyond * (b - a) for a, b in zip(few, more, strict=True))
    return attention, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default="Qwen/Qwen2.5-1.5B-Instruct", help="of the plan's shapes"
    )
    parser.add_argument("--tokens", type=int, default=16_384, help="of a pass")
    options = parser.parse_args()
    shape = yaml.safe_load(budget.SHAPES.read_text())[options.model]
    rows = sampled(Path(os.environ["REC_DATA"]))
    tokens = sum(row.length for row in rows)
    shared = sum(row.response for row in rows) + sum({r.group: r.prompt for r in rows}.values())
    once = {"padded": tokens, "packed": tokens, "shared": shared}  # without padding
    print(f"{datetime.date.today()}, torch {torch.__version__}, {options.model}")
    print(f"{len(rows)} rows, {tokens} tokens, passes of at most {options.tokens}")
    print(
        "          passes  tokens computed  padding  products  attention  within (10^15 operations)"
    )
    for name in LAYOUTS:
        layout = {} if name == "padded" else {name: True}
        limits = Limits(sequences=None, tokens=options.tokens, **layout)

        def large(part: list[TokenSequence]) -> bool:
            return is_large(len(part), max(s.response for s in part), shape["vocab_size"])

        parts = passes(rows, [True] * len(rows), limits, ALONE, large)
        computed = sum(limits.computed(part.sequences) for part in parts)
        attention, others = of_all_layers(shape, parts, layout)
        within = attention * share_within(parts) if name == "packed" else attention
        print(
            f"{name:8}  {len(parts):6}  {computed:15}  {1 - once[name] / computed:7.1%}  "
            f"{others / 1e15:8.3f}  {attention / 1e15:9.3f}  {within / 1e15:6.3f}",
            flush=True,
        )


def share_within(parts: list[Pass]) -> float:
    """Of the pairs of tokens in packed rows, those of one sequence."""
    lengths = [[sequence.length - 1 for sequence in part.sequences] for part in parts]
    return sum(n * n for row in lengths for n in row) / sum(sum(row) ** 2 for row in lengths)


if __name__ == "__main__":
    main()
