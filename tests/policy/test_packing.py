"""Sequences in one row say what they say in rows of their own.

1. Loss and gradient are those of padded rows, to float64's rounding, whatever the lengths, with a
   reference and with exact entropy in the loss.
2. No padding is computed; what is saved on sequences like GSM8K's is counted.
3. Heads that are not plain take the padded way.
"""

import pytest
import torch
from conftest import Row, sequences_of
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import SHAPE
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen2Config

from rec_experiments.policy.batching import collate, packed
from rec_experiments.policy.logprobs import ForwardPass, Wanted

pytestmark = pytest.mark.usefixtures("padded_rows")  # beside what is laid out by choice

STYLE = {**SHAPE, "vocab_size": 61}
CONFIGS = {
    "qwen2": Qwen2Config(**STYLE, tie_word_embeddings=True),
    "llama": LlamaConfig(**STYLE, tie_word_embeddings=False),
}


def model(config, seed=0):
    torch.manual_seed(seed)
    built = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return built.double().eval()


def sequences(lengths):
    numbers = iter(range(10_000))

    def tokens(count):
        return [3 + next(numbers) * 7 % 58 for _ in range(count)]

    return [Row(tokens(p), tokens(r)) for p, r in lengths]


def forward(**layout):
    return ForwardPass(
        temperature=0.7, compute_dtype=torch.float32, **layout
    )  # float32 leaves the weights' float64


def loss_and_gradient(policy, reference, rows, **layout):
    policy.zero_grad()
    wanted = Wanted(
        others={"reference": reference}, kl=True, differentiable=frozenset({"entropy", "kl"})
    )
    scored = forward(**layout)(policy, sequences_of(rows), wanted, chunked=True)
    loss = torch.zeros((), dtype=torch.float64)
    for b, row in enumerate(rows):
        live = slice(len(row.response))
        worth = torch.linspace(-1, 2, len(row.response), dtype=torch.float64) * (b + 1)
        loss = loss + (worth * scored.logp_BT[b, live]).sum()
        loss = loss + 0.3 * scored.kl_BT[b, live].sum() - 0.2 * scored.entropy_BT[b, live].sum()
        loss = loss + scored.others["reference"][b, live].sum()
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in policy.parameters()])


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=6)


@pytest.mark.parametrize("name", CONFIGS)  # in sdpa: eager takes its softmax in float32
@settings(max_examples=8, deadline=None)
@given(lengths=LENGTHS)
def test_loss_and_gradient(name, lengths):
    policy, reference = (model(CONFIGS[name], seed) for seed in (0, 1))
    rows = sequences(lengths)
    one = loss_and_gradient(policy, reference, rows, packed=False)
    other = loss_and_gradient(policy, reference, rows, packed=True)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)
    assert one[1].abs().max() > 1e-3


@given(lengths=LENGTHS)
def test_tokens_of_a_row(lengths):
    rows = sequences(lengths)
    batch = packed(sequences_of(rows))
    assert batch.arguments["input_ids"].numel() == sum(s.length - 1 for s in rows)
    read = [token for s in rows for token in (s.prompt + s.response)[:-1]]
    assert batch.arguments["input_ids"][0].tolist() == read
    assert (batch.arguments["position_ids"][0] == 0).sum() == sum(s.length > 1 for s in rows)
    padded = collate(sequences_of(rows))
    assert torch.equal(batch.target_N, padded.target_N)
    assert torch.equal(batch.live_N, padded.live_N)
    assert tuple(batch.shape) == tuple(padded.shape)


@given(lengths=LENGTHS)
@settings(max_examples=8, deadline=None)
def test_no_padding(lengths):
    """Counted where tokens enter it."""
    policy, rows, seen = model(CONFIGS["qwen2"]), sequences(lengths), []
    policy.model.embed_tokens.register_forward_hook(lambda _, args, out: seen.append(args[0]))
    forward(packed=True)(policy, sequences_of(rows))
    assert seen[0].numel() == sum(row.length - 1 for row in rows)


def test_other_heads_are_padded():
    config = Gemma2Config(**STYLE, head_dim=8)
    policy, rows = model(config), sequences([(3, 4), (5, 2)])
    one, other = (
        forward(packed=is_packed)(policy, sequences_of(rows)).logp_BT for is_packed in (False, True)
    )
    assert torch.equal(one, other)
