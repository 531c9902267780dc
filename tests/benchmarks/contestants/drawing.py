"""Sampling alone: `drawing.py FOLDER native|generate|vllm`. A step draws one batch."""

import itertools
import os
import sys
from collections.abc import Callable

from work import Pace, Work

Draw = Callable[[list[list[int]]], int]  # K responses to each prompt; how many tokens they have


def native(work: Work) -> Draw:
    """This project's sampler."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rec_experiments.common.batch import SampleKey
    from rec_experiments.common.rng import TRAIN
    from rec_experiments.samplers.decoding import NativeSampler

    tokenizer = AutoTokenizer.from_pretrained(work.model)
    model = AutoModelForCausalLM.from_pretrained(work.model)
    sampler = NativeSampler(model, [tokenizer.eos_token_id], work.limit, max_rows=None)
    batches = itertools.count()

    def draw(prompts: list[list[int]]) -> int:
        batch, K = next(batches), work.group_size
        draws = [[SampleKey(0, TRAIN, batch, g, k) for k in range(K)] for g in range(len(prompts))]
        return int(sampler.sample(prompts, draws, temperature=1.0).length_B.sum())

    return draw


def generate(work: Work) -> Draw:
    """transformers' `generate` with its default cache."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(work.model)
    model = AutoModelForCausalLM.from_pretrained(work.model)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id

    def draw(prompts: list[list[int]]) -> int:
        width = max(map(len, prompts))
        output = model.generate(
            input_ids=torch.tensor([[pad] * (width - len(row)) + row for row in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in prompts]),
            do_sample=True, temperature=1.0, top_k=0, num_return_sequences=work.group_size,
            max_new_tokens=work.limit, eos_token_id=eos, pad_token_id=pad,
        )[:, width:]  # fmt: skip
        ended = (output == eos).cumsum(1)
        return int((ended == 0).sum() + (ended > 0).any(1).sum())

    return draw


def vllm(work: Work) -> Draw:
    """vLLM's build for CPUs, in this process, with the log-probability of each drawn token."""
    from rec_experiments.samplers.vllm import ENVIRONMENT

    os.environ.update(ENVIRONMENT)
    import torch
    from vllm import LLM, SamplingParams

    engine = LLM(
        work.model, skip_tokenizer_init=True, generation_config="vllm", dtype="float32",
        max_model_len=work.context, kv_cache_memory_bytes=512 << 20, max_num_seqs=work.rows,
        enforce_eager=True, seed=0,
    )  # fmt: skip
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    stop = engine.llm_engine.model_config.hf_config.eos_token_id
    parameters = SamplingParams(
        n=work.group_size, temperature=1.0, max_tokens=work.limit, stop_token_ids=[stop],
        logprobs=0, detokenize=False,
    )  # fmt: skip

    def draw(prompts: list[list[int]]) -> int:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        drawn = engine.generate(asked, parameters, use_tqdm=False)
        return sum(len(response.token_ids) for of_prompt in drawn for response in of_prompt.outputs)

    return draw


def run(work: Work, name: str) -> None:
    from transformers import AutoTokenizer

    pace = Pace()
    draw = {"native": native, "generate": generate, "vllm": vllm}[name](work)
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    texts = [problem["prompt"] for problem in work.problems()]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    pace.ready()
    for batch in itertools.count():
        start = batch * work.prompts % (len(prompts) - work.prompts)
        with pace.sampling():
            pace.tokens += draw(prompts[start : start + work.prompts])
        pace.stepped()


if __name__ == "__main__":
    run(Work.load(sys.argv[1]), sys.argv[2])
