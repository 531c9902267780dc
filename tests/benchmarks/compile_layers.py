"""Gradient passes with compiled layers beside passes without, on a CPU.

Run `python tests/benchmarks/compile_layers.py [--model 20M]`. A model of random weights, of the
shapes of plan_reality.py, takes the same pass forward and backward in turn, compiled and not, on
one thread. Printed are the processor seconds of compiling, which a process spends once, and of a
pass, with their ratio in each round; and whether loss and gradient agree.
"""

import argparse
import copy
import datetime
import statistics
import time

import torch
from plan_reality import SHAPES
from transformers import AutoModelForCausalLM, PreTrainedModel

from rec_experiments.common.batch import Sequences
from rec_experiments.plan.memory import configuration
from rec_experiments.policy.compiled import compile_layers
from rec_experiments.policy.logprobs import ForwardPass

PROMPT, RESPONSE = 64, 64  # tokens of the longest row; the others are shorter


def sequences(rows: int, step: int) -> Sequences:
    return Sequences.of(
        [[3 + i + step] * (PROMPT - i) for i in range(rows)],
        [[5 + i] * (RESPONSE - 2 * i) for i in range(rows)],
    )


def seconds_of(model: PreTrainedModel, rows: Sequences) -> tuple[float, torch.Tensor]:
    """Processor seconds of a pass, and its gradient."""
    forward = ForwardPass(pad_id=0, temperature=1.0, compute_dtype=torch.float32)
    model.zero_grad()
    started = time.process_time()
    forward(model, rows).logp_BT.sum().backward()
    seconds = time.process_time() - started
    return seconds, torch.cat([weight.grad.flatten() for weight in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="20M")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(
        configuration(SHAPES[options.model]), attn_implementation="sdpa"
    ).train()
    compiled = copy.deepcopy(plain)
    compile_layers(compiled)
    first, _ = seconds_of(compiled, sequences(options.rows, 0))
    seconds_of(plain, sequences(options.rows, 0))
    print(f"{datetime.date.today()}, CPU, torch {torch.__version__}, {options.model}")
    print(f"first compiled pass {first:.1f} s\nplain s  compiled s  ratio")
    ratios = []
    for step in range(1, options.rounds + 1):
        rows = sequences(options.rows, step)
        (one, expected), (other, found) = (seconds_of(each, rows) for each in (plain, compiled))
        torch.testing.assert_close(
            found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())
        )
        ratios.append(other / one)
        print(f"{one:7.2f}  {other:10.2f}  {ratios[-1]:5.2f}", flush=True)
    print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
