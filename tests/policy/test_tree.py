"""The fast CPU path computes what the library computes.

1. Loss and gradient equal those of padded rows up to float64 rounding, whichever prefixes the rows
   share, with a reference and with exact entropy and KL in the loss.
2. The tree holds each prefix once, and every row can be read from it.
3. Only models that it computes exactly take it.
4. A run without it has the same metrics up to rounding.
"""

import copy

import pytest
import torch
import transformers
from conftest import Row, sequences_of, with_exact_norms
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shared_prompts import LARGER, assert_close, loss_and_gradient, rows_and_names, saved
from torch.nn.utils import parametrizations, prune
from transformers.models.qwen2 import modeling_qwen2 as qwen2

from rec_experiments.common.distributed import ALONE
from rec_experiments.policy import logprobs, tree
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.policy.tree import TreeBatch, forward, supports

STYLE = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "qwen2": transformers.Qwen2Config(
        **STYLE, num_key_value_heads=4, tie_word_embeddings=True, pad_token_id=2
    ),
    "qwen2, fewer key heads": transformers.Qwen2Config(**STYLE, num_key_value_heads=2),
    "llama": transformers.LlamaConfig(**STYLE, num_key_value_heads=1),
    "llama with biases of attention": transformers.LlamaConfig(
        **STYLE, num_key_value_heads=4, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
}  # fmt: skip
FORWARD = ForwardPass(temperature=0.7, compute_dtype=torch.float32)
TOKENS = st.integers(1, 3)  # few, so that rows begin alike and are equal
ROWS = st.lists(
    st.tuples(st.lists(TOKENS, min_size=1, max_size=4), st.lists(TOKENS, min_size=1, max_size=6)),
    min_size=1, max_size=9,
)  # fmt: skip


def build(config, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # norms and biases too
    return model.train()


def sequences(rows):
    return [Row(prompt, response) for prompt, response in rows]


def in_float64(config, seed):
    """With norms in float64, as the tree's are. Those of the library are in float32."""
    return with_exact_norms(build(config, seed, torch.float64))


@pytest.mark.parametrize("short", [64, 0])  # attention by plain products, and torch's own
@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=10, deadline=None)
@given(rows=ROWS)
def test_loss_and_gradient(name, short, rows):
    policy, reference = (in_float64(CONFIGS[name], seed) for seed in (0, 1))
    one = loss_and_gradient(policy, reference, sequences(rows), shared=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tree, "supports", lambda model: True)
        patched.setattr(logprobs, "collate", None)  # not that way
        patched.setattr(forward, "LONGEST_SHORT", short)
        other = loss_and_gradient(policy, reference, sequences(rows), shared=False)
        with torch.no_grad():
            silent = FORWARD(policy, sequences_of(rows)).logp_BT
        assert torch.equal(silent, FORWARD(policy, sequences_of(rows)).logp_BT)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)
    assert one[1].abs().max() > 1e-3


def test_run(tmp_path, monkeypatch):
    """A token for padding among the responses, whose embedding has no gradient, included."""
    saved(transformers.Qwen2Config(**LARGER), tmp_path / "model")
    with_tree, _ = rows_and_names(ALONE, tmp_path / "tree", ())
    monkeypatch.setenv("REC_FAST_PATH", "0")
    assert_close(with_tree, rows_and_names(ALONE, tmp_path / "padded", ())[0])


@given(rows=ROWS)
def test_each_prefix_once(rows):
    batch = TreeBatch.of(sequences_of(rows))
    read = [(p + r)[:-1] for p, r in rows]
    distinct = {tuple(row[:n]) for row in read for n in range(1, len(row) + 1)}
    assert len(batch.input_ids) == len(distinct)
    places = batch.place_BL.tolist()
    prefixes = {}
    for row, place in zip(read, places, strict=True):
        for n, u in enumerate(place[: len(row)]):
            assert int(batch.input_ids[u]) == row[n]
            assert int(batch.position_ids[u]) == n
            assert prefixes.setdefault(u, row[: n + 1]) == row[: n + 1]
    assert len(prefixes) == len(distinct)
    flat = batch.place_BL.flatten()
    assert flat[batch.first_U].tolist() == list(range(len(distinct)))
    assert torch.equal(flat[batch.again_X], batch.again_place_X)
    L = batch.place_BL.shape[1]
    real = {b * L + n for b, row in enumerate(read) for n in range(len(row))}
    assert {*batch.first_U.tolist(), *batch.again_X.tolist()} == real
    assert len(batch.first_U) + len(batch.again_X) == len(real)
    before = [prefixes[u] for u in batch.keep_N.tolist()]
    assert before == [(p + r)[: len(p) + t] for p, r in rows for t in range(len(r))]
    assert batch.target_N.tolist() == [token for _, r in rows for token in r]
    T = batch.shape[1]
    assert batch.live_N.tolist() == [
        b * T + t for b, (_, r) in enumerate(rows) for t in range(len(r))
    ]


def part(model, path):
    return model.get_submodule(f"model.layers.1.{path}")


def of_class(path, base):
    """The part computes otherwise, by its class."""

    def change(model):
        part(model, path).__class__ = type("Other", (base,), {})

    return change


def hooked(path, kind):
    def change(model):
        getattr(part(model, path), f"register_{kind}_hook")(lambda *_: None)

    return change


def wrapped(path):
    def change(model):
        part(model, path).forward = part(model, path).forward

    return change


def with_bias(model):
    part(model, "mlp.down_proj").bias = torch.nn.Parameter(torch.zeros(24))


def without_bias(model):
    part(model, "self_attn.q_proj").bias = None


CHANGES = {
    "a hook": hooked("self_attn.q_proj", "forward"),
    "a hook before": hooked("mlp", "forward_pre"),
    "a hook of the backward pass": hooked("mlp", "full_backward"),
    "a bias": with_bias,
    "a bias less": without_bias,
    "another linear layer": of_class("self_attn.q_proj", torch.nn.Linear),
    "another MLP": of_class("mlp", qwen2.Qwen2MLP),
    "another norm": lambda model: setattr(model.model, "norm", torch.nn.RMSNorm(24)),
    "another activation": lambda model: setattr(part(model, "mlp"), "act_fn", torch.nn.GELU()),
    "a compiled layer": wrapped("mlp"),
    "weights that are pruned": lambda model: prune.identity(part(model, "mlp.up_proj"), "weight"),
    "weights that are normed": lambda model: parametrizations.weight_norm(
        part(model, "mlp.up_proj")
    ),
    "one part in float64": lambda model: part(model, "mlp").double(),
    "checkpointing": lambda model: model.gradient_checkpointing_enable(),
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "dropout": lambda model: setattr(model.config, "attention_dropout", 0.1),
    "eager attention": lambda model: model.set_attn_implementation("eager"),
    "another device": lambda model: model.to("meta"),
}


def test_supported_models():
    assert all(supports(build(config)) for config in CONFIGS.values())


@pytest.mark.parametrize("change", CHANGES)
def test_unsupported_models(change):
    model = build(CONFIGS["qwen2"])
    CHANGES[change](model)
    assert not supports(model)


def test_large_layers(monkeypatch):
    """Their matrices are copied in every pass."""
    model = build(CONFIGS["qwen2"])
    linears = [x for x in model.model.layers[0].modules() if isinstance(x, torch.nn.Linear)]
    weights = sum(x.weight.numel() for x in linears)
    monkeypatch.setattr(forward, "LARGEST_LAYER", weights)
    assert supports(model)
    monkeypatch.setattr(forward, "LARGEST_LAYER", weights - 1)
    assert not supports(model)


def test_layer_keeps_no_graph():
    """A graph within would hold what the written-out backward pass does without."""
    model = build(CONFIGS["qwen2"])
    hidden = forward.hidden_states(model, TreeBatch.of(sequences_of([([5, 6], [7, 8])])))
    layer = hidden.grad_fn.next_functions[0][0]
    kept = [*layer.kept, *layer.kept.weights]
    tensors = [each for each in kept if isinstance(each, torch.Tensor)]
    assert len(tensors) > 10
    graphs = [each for each in tensors if each.grad_fn is not None]
    assert not graphs
