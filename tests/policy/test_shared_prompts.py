"""Responses in one row behind their prompt say what they say in rows of their own.

1. Loss and gradient are those of padded rows, to float64's rounding, whatever the lengths, with a
   reference and with exact entropy in the loss, and with checkpointing of activations.
2. Each prompt is computed once; no response sees another.
3. A run ends at the numbers of one that shares nothing, up to rounding, on two ranks too.
4. What cannot share is one line.
"""

import copy

import pytest
import torch
from conftest import Row, experiment, resolve, sequences_of, timeless, with_exact_norms
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packing import CONFIGS, STYLE, forward, loss_and_gradient, model
from transformers import AutoModelForCausalLM, Gemma2Config, MistralConfig, Qwen2Config

from rec_experiments.common.batch import Sequences
from rec_experiments.common.distributed import ALONE
from rec_experiments.common.errors import UserError
from rec_experiments.policy.batching import shared
from rec_experiments.policy.models import byte_tokenizer
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("padded_rows")  # beside what is laid out by choice

# Of each prompt its length, and those of its responses; in what order they come is drawn too.
GROUPS = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 7), min_size=1, max_size=4)),
    min_size=1, max_size=4,
)  # fmt: skip


def sequences(groups, order):
    numbers = iter(range(10_000))

    def tokens(count):
        return [3 + next(numbers) * 7 % 58 for _ in range(count)]

    made = []
    for length, responses in groups:
        prompt = tokens(length)
        made += [Row(prompt, tokens(n)) for n in responses]
    order.shuffle(made)
    return made


def exact(name, seed):
    """A model in which a sum over the responses is rounded as each response by itself."""
    return with_exact_norms(model(CONFIGS[name], seed))


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=8, deadline=None)
@given(groups=GROUPS, order=st.randoms(use_true_random=False))
def test_loss_and_gradient(name, groups, order):
    policy, reference = (exact(name, seed) for seed in (0, 1))
    policy.train().gradient_checkpointing_enable()
    rows = sequences(groups, order)
    one = loss_and_gradient(policy, reference, rows, shared=False)
    other = loss_and_gradient(policy, reference, rows, shared=True)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)
    assert one[1].abs().max() > 1e-3


@settings(max_examples=8, deadline=None)
@given(groups=GROUPS, order=st.randoms(use_true_random=False))
def test_each_prompt_once(groups, order):
    """Counted where tokens enter it, padding at the end of shorter rows apart."""
    policy, rows, seen = model(CONFIGS["qwen2"]), sequences(groups, order), []
    policy.model.embed_tokens.register_forward_hook(lambda _, args, out: seen.append(args[0]))
    forward(shared=True)(policy, sequences_of(rows))
    lengths = [length + sum(n - 1 for n in responses) for length, responses in groups]
    assert tuple(seen[0].shape) == (len(groups), max(lengths))
    batch = shared(sequences_of(rows))
    assert int((batch.part_GL >= 0).sum()) == sum(lengths)


def test_attention_mask():
    """A prompt of two tokens, responses of two and of three; their last tokens are not read."""
    batch = shared(Sequences.of([[5, 6], [5, 6], [7]], [[8, 9], [3, 4, 2], [1]]))
    mask_GLL = batch.inputs()["attention_mask"][:, 0].int().tolist()
    assert batch.arguments["input_ids"].tolist() == [[5, 6, 8, 3, 4], [7, 0, 0, 0, 0]]
    assert batch.arguments["position_ids"][0].tolist() == [0, 1, 2, 2, 3]
    assert mask_GLL[0] == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1],
    ]  # fmt: skip
    assert batch.keep_N.tolist() == [1, 2, 1, 3, 4, 5]
    assert batch.target_N.tolist() == [8, 9, 3, 4, 2, 1]
    assert batch.live_N.tolist() == [0, 1, 3, 4, 5, 6]


def saved(config, folder):
    torch.manual_seed(0)
    config.eos_token_id, config.pad_token_id = 1, 0
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


LARGER = STYLE | {"vocab_size": 258, "max_position_embeddings": 512}


RUN = (
    "model=pretrained", "dataset=arithmetic", "steps=2", "batch_size=4", "group_size=4",
    "eval_problems=4", "kl_every=1", "dataset.train_problems=16", "dataset.eval_problems=8",
    "reward=noise", "reward.share=0.4", "correction=truncated", "micro_batch_size=9",
    "sampler.max_rows=4",
)  # fmt: skip


def rows_and_names(world, path, overrides):
    """Of a whole run, on one rank or many."""
    overrides = (*RUN, f"model.path={path.parent}/model", f"ranks={world.size}", *overrides)
    exp, config, folder = experiment(*overrides), resolve(*overrides), RunFolder(path, world)
    folder.check(config)
    folder.start(config, {})
    prepare(exp, world=world).train(folder)
    return [*map(timeless, folder.metrics())], list(folder.load_checkpoint()[0]["weights"]["model"])


def assert_close(rows, others):
    for row, other in zip(rows, others, strict=True):
        assert other == pytest.approx(row, rel=1e-3, abs=1e-5)


def test_run(ranks, tmp_path):
    """On one rank and on two, with the behavior policy's numbers computed anew."""
    saved(Qwen2Config(**LARGER), tmp_path / "model")
    plain, _ = rows_and_names(ALONE, tmp_path / "plain", ())
    assert plain[1]["train/grad_norm"] > 1e-3
    sharing = ("model.shared_prompts=true",)
    assert_close(rows_and_names(ALONE, tmp_path / "one", sharing)[0], plain)
    for rows, _ in ranks(rows_and_names, tmp_path / "two", sharing):
        assert_close(rows, plain)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Gemma2Config(**LARGER, head_dim=8), "a gemma2 with a window of 4096 tokens"),
        (MistralConfig(**LARGER, sliding_window=32), "a mistral with a window of 32 tokens"),
    ],
)
def test_families_that_cannot_share(tmp_path, config, why):
    saved(copy.deepcopy(config), tmp_path)
    source = ("model=pretrained", f"model.path={tmp_path}", "model.shared_prompts=true")
    with pytest.raises(UserError, match=rf"model\.shared_prompts=true: {why}"):
        experiment(*source).model.model()
