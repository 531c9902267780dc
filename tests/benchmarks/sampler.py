"""Native sampler against `transformers` `generate`: response tokens per second on a tiny model.

Run `python tests/benchmarks/sampler.py`. Both draw 8 responses for each of 32 left-padded prompts
at temperature 1, in turns (A B A B), so that a busy machine slows both. "forced" gives every
response 24 tokens and "natural" lets an end token stop it (at an untrained model's rate, 1 in 24
tokens): nearly all draws differ from the first token on. "miniature" is the default run's
warm-started model on its own prompts, whose draws say the same for long.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hydra import compose, initialize_config_dir
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, set_seed

from rec_experiments.common.batch import SampleKey
from rec_experiments.common.rng import TRAIN
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.runs.prepare import prepare
from rec_experiments.samplers.decoding import NativeSampler

VOCABULARY, PAD = 260, 258
PROMPTS, DRAWS, LIMIT = 32, 8, 24


@dataclass(frozen=True)
class Case:
    """What is sampled: `stop` are the end tokens, `limit` the most tokens of a response."""

    label: str
    model: PreTrainedModel
    prompts: list[list[int]]
    stop: list[int]
    pad: int
    limit: int


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


def untrained() -> list[Case]:
    """Responses of one length, and responses that an end token stops 1 time in LIMIT."""
    model = tiny_model()
    prompts = [torch.randint(VOCABULARY, (6 + i % 5,)).tolist() for i in range(PROMPTS)]
    often = list(range(VOCABULARY // LIMIT))
    return [
        Case("forced", model, prompts, [], PAD, LIMIT),
        Case("natural", model, prompts, often, PAD, LIMIT),
    ]


def miniature() -> Case:
    """The default run at its start."""
    schema.register()
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        experiment = schema.build(compose("config"), Experiment)
    bench = prepare(experiment)
    chat, problems = bench.chat, bench.train_problems[:PROMPTS]
    prompts = chat.encode_all([problem.messages for problem in problems])
    limit = experiment.dataset.max_response_tokens
    return Case("miniature", bench.model.eval(), prompts, chat.eos_ids, chat.pad_id, limit)


def native(case: Case) -> Callable[[], int]:
    """One rollout of the native sampler; returns its response tokens."""
    sampler = NativeSampler(
        copy.deepcopy(case.model), case.stop, case.pad, case.limit, max_rows=None
    )
    draws = [[SampleKey(0, TRAIN, 0, g, k) for k in range(DRAWS)] for g in range(PROMPTS)]

    def rollout() -> int:
        responses = sampler.sample(case.prompts, draws, temperature=1.0)
        return int(responses.length_B.sum())

    return rollout


def generate(case: Case) -> Callable[[], int]:
    """One rollout of `generate` with its default cache; returns its response tokens."""
    width = max(map(len, case.prompts))
    ids = torch.tensor([[case.pad] * (width - len(row)) + row for row in case.prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in case.prompts])

    def rollout() -> int:
        output = case.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            num_return_sequences=DRAWS,
            max_new_tokens=case.limit,
            eos_token_id=case.stop or None,
            pad_token_id=case.pad,
        )
        if not case.stop:
            return output[:, width:].numel()
        ended = torch.isin(output[:, width:], torch.tensor(case.stop)).cumsum(dim=1)
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
    cases = [*untrained(), miniature()]
    print("threads  responses  native tokens/s  generate tokens/s  ratio of medians")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for case in cases:
            pair = [make(case) for make in (native, generate)]
            ours, theirs = map(statistics.median, tokens_per_second(pair, rounds))
            print(
                f"{threads:7}  {case.label:9}  {ours:15.0f}  {theirs:17.0f}  {ours / theirs:16.2f}"
            )


if __name__ == "__main__":
    main()
