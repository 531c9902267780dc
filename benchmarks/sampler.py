"""Native sampler against `transformers` `generate`: response tokens per second on a tiny model.

Run `python benchmarks/sampler.py`. Both draw 8 responses for each of 32 left-padded prompts at
temperature 1, in turns (A B A B), so that a busy machine slows both. "forced" gives every response
24 tokens; "natural" lets an end token stop it (at an untrained model's rate, 1 in 24 tokens).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, set_seed

from rec_experiments.rng import TRAIN
from rec_experiments.samplers.decoding import NativeSampler
from rec_experiments.types import Draw

VOCABULARY, PAD = 260, 258
PROMPTS, DRAWS, LIMIT = 32, 8, 24


def tiny_model() -> Qwen2ForCausalLM:
    """The miniature's shape, untrained."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    return Qwen2ForCausalLM(config).eval()


def eos_ids(natural: bool) -> list[int]:
    """End tokens: enough of the vocabulary to stop about 1 token in LIMIT, or none."""
    return list(range(VOCABULARY // LIMIT)) if natural else []


def native(model: PreTrainedModel, prompts: list[list[int]], natural: bool) -> Callable[[], int]:
    """One rollout of the native sampler; returns its response tokens."""
    sampler = NativeSampler(model, eos_ids(natural), PAD, LIMIT, max_rows=None)
    draws = [[Draw(0, TRAIN, 0, g, k) for k in range(DRAWS)] for g in range(len(prompts))]

    def rollout() -> int:
        responses = sampler.sample(prompts, draws, temperature=1.0)
        return sum(len(response.tokens) for group in responses for response in group)

    return rollout


def generate(model: PreTrainedModel, prompts: list[list[int]], natural: bool) -> Callable[[], int]:
    """One rollout of `generate` with its default cache; returns its response tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    stop = eos_ids(natural)

    def rollout() -> int:
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            num_return_sequences=DRAWS,
            max_new_tokens=LIMIT,
            eos_token_id=stop or None,
            pad_token_id=PAD,
        )
        if not stop:
            return output[:, width:].numel()
        ended = torch.isin(output[:, width:], torch.tensor(stop)).cumsum(dim=1)
        return int((ended == 0).sum() + (ended > 0).any(dim=1).sum())

    return rollout


def tokens_per_second(rollouts: list[Callable[[], int]], rounds: int) -> list[list[float]]:
    """Speeds of each rollout, measured in turns after one unmeasured round."""
    speeds: list[list[float]] = [[] for _ in rollouts]
    for turn in range(rounds + 1):
        for rollout, measured in zip(rollouts, speeds, strict=True):
            start = time.perf_counter()
            tokens = rollout()
            if turn:
                measured.append(tokens / (time.perf_counter() - start))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    set_seed(0)
    model = tiny_model()
    prompts = [torch.randint(VOCABULARY, (6 + i % 5,)).tolist() for i in range(PROMPTS)]
    print("threads  responses  native tokens/s  generate tokens/s  ratio of medians")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for natural in (False, True):
            pair = [make(model, prompts, natural) for make in (native, generate)]
            ours, theirs = map(statistics.median, tokens_per_second(pair, rounds))
            label = "natural" if natural else "forced"
            print(f"{threads:7}  {label:9}  {ours:15.0f}  {theirs:17.0f}  {ours / theirs:16.2f}")


if __name__ == "__main__":
    main()
