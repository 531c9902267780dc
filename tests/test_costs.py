"""What things cost, by count and never by the clock; docs/performance.md states the same in words.

1. Training: linear in the responses that differ, free for equal ones; linear and quadratic in the
   length, as attention is.
2. Drawing: each distinct prefix of what is said is computed once, whatever K.
3. A checkpoint: at most as many pending batches as the schedule makes
   (tests/rollout/test_overlap.py).
4. A sweep: as many compositions for three seeds as for one (tests/sweeps/test_sweeps.py).
5. Claims and reports: each run is read once, however many figures show it.
"""

import itertools

import numpy as np
import pytest
import torch
from conftest import accumulate_gradient, experiment
from fabricated import rows_of, write_run
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from rec_experiments.analysis.results.table import content
from rec_experiments.common.batch import Responses, Rollouts
from rec_experiments.common.problems import VerifierResult
from rec_experiments.runs.run_folder import RunFolder

PROMPT = [5, 6, 7]


def model_of() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0,
        bos_token_id=None, eos_token_id=None, initializer_range=0.5,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.set_attn_implementation("eager")  # made of products that torch knows how to count
    return model


def batch_of(responses: list[list[int]], group_size: int) -> Rollouts:
    """Rewards take turns, so that no advantage is 0."""
    rows = range(len(responses))
    return Rollouts.verified(
        Responses.of(responses, [[-1.0] * len(tokens) for tokens in responses]),
        prompts=[PROMPT] * len(rows),
        groups=[i // group_size for i in rows],
        results=[VerifierResult(float(i % 2), 0.0) for i in rows],
    )


def different(count: int, length: int) -> list[list[int]]:
    tokens = itertools.product(range(1, 9), repeat=length)
    return [list(row) for row in itertools.islice(tokens, count)]


def operations(responses: list[list[int]], group_size: int = 2) -> int:
    """Of all matrix products of a forward and backward pass."""
    with FlopCounterMode(display=False) as counted:
        accumulate_gradient(
            model_of(), batch_of(responses, group_size),
            experiment("algo=reinforce").algorithm(),
        )  # fmt: skip
    return counted.get_total_flops()


@pytest.mark.parametrize("group_size", [2, 8])
def test_training_is_linear_in_the_responses_that_differ(group_size):
    one, two, three = (operations(different(8 * n, 6), group_size) for n in (1, 2, 3))
    assert two - one == three - two == one > 0


def test_equal_responses_cost_nothing_more():
    once = different(2, 6)
    assert operations(once * 16, group_size=8) == operations(once, group_size=2)


def test_training_is_quadratic_in_the_length_of_a_response():
    counts = [operations(different(4, length)) for length in range(4, 12)]
    assert len(set(np.diff(counts, 2))) == 1  # attention
    assert not np.diff(counts, 3).any()


def test_a_run_is_read_once_until_it_changes(tmp_path):
    path = write_run(tmp_path / "run", rows_of("GRPO", seed=0), "running")
    assert content(path).rows is content(path).rows
    RunFolder(path).append("metrics.jsonl", [{"step": 99}])
    assert content(path).step == 99
