"""Several small runs in one process, their models stacked, beside the same models one by one.

Run `python benchmarks/batched_runs.py [--runs 4]`. Models of the miniature's shape, each with its
own weights and data, take a gradient pass and a decoding step on one thread, in turn: stacked
(torch.func.vmap) and apart. Printed are medians of processor seconds, and of the ratio within a
round; and whether the stacked gradient has the bits of the others.
"""

import argparse
import datetime
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from transformers import AutoModelForCausalLM, Qwen2Config

SHAPE = Qwen2Config(
    vocab_size=259,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=128,
    tie_word_embeddings=True,
)
ROWS, TOKENS = 64, 48  # of a gradient pass
DRAWN = 128  # rows of a decoding step


def logits(model: Callable, ids_BT: Tensor) -> Tensor:
    B, T = ids_BT.shape
    causal = torch.ones(B, 1, T, T, dtype=torch.bool).tril()
    return model(
        input_ids=ids_BT, attention_mask={"full_attention": causal}, use_cache=False
    ).logits


def loss(model: Callable, ids_BT: Tensor, target_BT: Tensor) -> Tensor:
    logp = torch.log_softmax(logits(model, ids_BT), -1)
    return logp.gather(-1, target_BT[..., None]).sum()


def seconds_of(work: Callable) -> tuple[float, object]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def compare(name: str, apart: Callable, stacked: Callable, rounds: int) -> tuple[object, object]:
    apart(), stacked()
    measured = []
    for _ in range(rounds):
        one, of_apart = seconds_of(apart)
        other, of_stacked = seconds_of(stacked)
        measured.append((1e3 * one, 1e3 * other, other / one))
    row = "  ".join(f"{statistics.median(column):8.2f}" for column in zip(*measured, strict=True))
    print(f"{name:14} {row}", flush=True)
    return of_apart, of_stacked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models: list[nn.Module] = [
        AutoModelForCausalLM.from_config(SHAPE, attn_implementation=options.attention)
        for _ in range(options.runs)
    ]
    weights, buffers = stack_module_state(models)
    R = options.runs
    ids, target = torch.randint(SHAPE.vocab_size, (2, R, ROWS, TOKENS))
    token = torch.randint(SHAPE.vocab_size, (R, DRAWN, 1))

    def of(weights: dict, buffers: dict) -> Callable:
        return lambda **inputs: functional_call(models[0], (weights, buffers), kwargs=inputs)

    def gradients() -> list[dict[str, Tensor]]:
        for model, ids_BT, target_BT in zip(models, ids, target, strict=True):
            model.zero_grad()
            loss(model, ids_BT, target_BT).backward()
        return [{name: w.grad for name, w in model.named_parameters()} for model in models]

    stacked_gradients = vmap(grad(lambda w, b, i, t: loss(of(w, b), i, t)))
    print(f"{datetime.date.today()}, CPU, torch {torch.__version__}, {options.runs} runs")
    print(f"{'':14} ms apart  stacked     ratio")
    expected, found = compare(
        "gradient pass", gradients, lambda: stacked_gradients(weights, buffers, ids, target),
        options.rounds,
    )  # fmt: skip
    with torch.no_grad():
        step = vmap(lambda w, b, i: logits(of(w, b), i))
        compare(
            "decoding step",
            lambda: [logits(model, ids_BT) for model, ids_BT in zip(models, token, strict=True)],
            lambda: step(weights, buffers, token),
            options.rounds,
        )
    same = all(
        torch.equal(found[name][run], gradient)
        for run in range(R) for name, gradient in expected[run].items()
    )  # fmt: skip
    print(f"the same bits: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
