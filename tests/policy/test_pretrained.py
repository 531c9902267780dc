"""Pretrained models: families, their tokenizers and templates, precision, and what can be missing.

1. A run trains on a local folder, whatever the family; responses end at any of its end tokens.
2. Prompts are those of the template, on any day, and responses are read with the tag it opened.
3. What cannot be loaded or used is one clear line.
"""

import json
import sys
from datetime import datetime
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import experiment
from language_models import CHATML, SIZES
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rec_experiments.cli.main import main
from rec_experiments.common.errors import UserError
from rec_experiments.datasets.verifiers.marks import final_answer
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import byte_tokenizer
from rec_experiments.samplers.decoding import NativeSampler

STYLE = {**SIZES, "max_position_embeddings": 256, "initializer_range": 0.1}
DATED = (  # as Llama 3.2: the day it is, unless the caller names one
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "<|begin_of_text|>Today Date: {{ date_string }}\n"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REASONING = (  # as DeepSeek-R1: the reasoning is open when the model begins
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
CLOSED = REASONING.replace("<think>\n{%", "<think>\n\n</think>\n\n{%")
SWITCHED = CHATML.replace(  # as Qwen3
    "assistant\n{%",
    "assistant\n{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}{%",
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else 'user' }}\n"
    "{{ m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{{ messages[0]['content'] }}"
)
QUESTION = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"})


def tokenizer(template, pad, specials):
    """Bytes, and the special tokens of a family; the last is the end token."""
    made = byte_tokenizer()
    made.add_special_tokens({"additional_special_tokens": specials})
    made.eos_token = specials[-1]
    made.pad_token = pad
    made.chat_template = template
    return made


def save(folder, config, made, stops):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = stops
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tiny local models, as save_pretrained writes them."""
    root = tmp_path_factory.mktemp("models")
    made = tokenizer(CHATML, "<pad>", ["<|im_start|>", "<|im_end|>"])
    config = transformers.Qwen2Config(
        **STYLE, vocab_size=len(made) + 7, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=made.eos_token_id, pad_token_id=made.pad_token_id,
    )  # fmt: skip
    stops = [made.eos_token_id, made.pad_token_id]
    found = {"qwen2": save(root / "qwen2", config, made, stops)}
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
    made = tokenizer(DATED, None, names)
    stops = made.convert_tokens_to_ids(names[1:])
    config = transformers.LlamaConfig(
        **STYLE, vocab_size=len(made), tie_word_embeddings=False, pad_token_id=None,
        bos_token_id=made.convert_tokens_to_ids(names[0]), eos_token_id=stops,
    )  # fmt: skip
    found["llama"] = save(root / "llama", config, made, stops)
    return found


def pretrained(folder, *overrides):
    return experiment("model=pretrained", f"model.path={folder}", *overrides).model


def codec_of(folder, template=None):
    chosen = pretrained(folder)
    made = chosen.tokenizer()
    made.chat_template = template or made.chat_template
    return ChatTemplate(made, chosen.model())


TWO_STEPS = (
    "model=pretrained", "dataset=arithmetic", "dataset.max_prompt_tokens=100",
    "dataset.max_response_tokens=8",
    "steps=2", "batch_size=2", "group_size=2", "eval_problems=4", "dataset.train_problems=16",
    "dataset.eval_problems=8", "algo=asymre", "kl_every=1", "micro_batch_tokens=200",
)  # fmt: skip


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_local_model(family, folders, tmp_path, monkeypatch):
    """Through the command line, in this process."""
    overrides = ("model.compute_dtype=bfloat16", "model.gradient_checkpointing=true")
    arguments = (*TWO_STEPS, f"model.path={folders[family]}", *overrides, "run_dir=run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rec_experiments", *arguments])
    main()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["train/grad_norm"] > 0 for row in rows[1:])
    assert rows[1]["train/kl"] == 0
    state = torch.load(
        tmp_path / "run" / "checkpoints" / "step_00000002" / "rank_0.pt", weights_only=True
    )
    own = AutoModelForCausalLM.from_pretrained(folders[family]).state_dict()
    assert state["weights"]["model"].keys() == own.keys()
    assert any(
        not torch.equal(own[name], weight) for name, weight in state["weights"]["model"].items()
    )


def test_end_tokens_of_llama(folders):
    chat = codec_of(folders["llama"])
    names = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
    assert chat.tokenizer.pad_token_id is None
    assert chat.eos_ids == sorted(chat.tokenizer.convert_tokens_to_ids(names))


def test_round_trip_of_text(folders):
    chat = codec_of(folders["qwen2"])
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = chat.encode(QUESTION)
    assert chat.tokenizer.decode(ids) == expected
    assert ids.count(chat.tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3
    answer = chat.encode_response("It is 2: ½ · 4.")
    assert answer[-1] in chat.eos_ids
    assert chat.decode(answer) == "It is 2: ½ · 4."


def test_special_tokens_stay(folders):
    chat = codec_of(folders["qwen2"])
    tags = ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>"]
    chat.tokenizer.add_special_tokens({"additional_special_tokens": tags})
    text = "<think>\nHm.\n</think>\n<answer>2</answer><tool_call>{}</tool_call>"
    assert chat.decode([*chat.encode_response(text), chat.tokenizer.pad_token_id]) == text


def test_a_padding_token_that_is_text_stays(folders):
    made = pretrained(folders["qwen2"]).tokenizer()
    made.pad_token = "!"
    chat = ChatTemplate(made, pretrained(folders["qwen2"]).model())
    assert chat.decode(chat.encode_response("2! is 2")) == "2! is 2"


def test_date_in_the_prompt(folders, monkeypatch):
    chat = codec_of(folders["llama"])
    monkeypatch.setattr(
        "transformers.utils.chat_template_utils.datetime",
        SimpleNamespace(now=lambda: datetime(2031, 5, 4)),
    )
    assert "04 May 2031" in chat.tokenizer.apply_chat_template(list(QUESTION), tokenize=False)
    text = chat.tokenizer.decode(chat.encode(QUESTION))
    assert text.startswith("<|begin_of_text|>Today Date: 26 Jul 2024\n<|system|>Be brief.")
    assert chat.encode(QUESTION).count(chat.encode(QUESTION)[0]) == 1  # one start token


def test_variables_of_the_template(folders, tmp_path):
    """An exported tokenizer formats prompts as the run does, and still takes other values."""
    made = AutoTokenizer.from_pretrained(folders["qwen2"])
    made.chat_template = SWITCHED
    save(tmp_path / "model", AutoConfig.from_pretrained(folders["qwen2"]), made, made.eos_token_id)
    off = "+model.chat_template_kwargs.enable_thinking=false"
    models = [pretrained(tmp_path / "model", *words) for words in ([], [off])]
    before, after = (
        made.decode(ChatTemplate(each.tokenizer(), each.model()).encode(QUESTION))
        for each in models
    )
    assert after == before + "<think>\n\n</think>\n\n"
    with pytest.raises(UserError, match=r"kwargs\.enable_thinkng: the chat template of .* has no"):
        pretrained(tmp_path / "model", off.replace("king", "kng")).tokenizer()
    models[1].tokenizer().save_pretrained(tmp_path / "exported")
    exported = AutoTokenizer.from_pretrained(tmp_path / "exported")
    options = {"tokenize": False, "add_generation_prompt": True}
    assert exported.apply_chat_template([*QUESTION], **options) == after
    assert exported.apply_chat_template([*QUESTION], enable_thinking=True, **options) == before


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("model.chat_template_kwargs=3", "kwargs=3: must be a mapping"),
        ("+model.chat_template_kwargs.a-b=3", "kwargs.a-b=a-b: must be a text like"),
    ],
)
def test_variables_that_are_none_are_one_line(word, line):
    with pytest.raises(UserError, match=line):
        pretrained("folder", word)


@pytest.mark.parametrize(
    ("template", "read"),
    [
        (REASONING, "<think>\nIt is 2."),
        (CLOSED, "It is 2."),
        (CHATML, "It is 2."),
        (GEMMA, "It is 2."),
        (GEMMA.replace("model\n{% e", "model\n<thought>\n{% e"), "<think>\nIt is 2."),
    ],
)
def test_opened_tag(folders, template, read):
    chat = codec_of(folders["qwen2"], template)
    assert chat.decode(chat.encode_response("It is 2.")) == read


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<think>\nOkay,", "</think>"),
    ],
)
def test_a_box_in_reasoning_that_was_cut_scores_0(folders, opening, closing):
    """The reasoning may be opened by any tag of the template."""
    chat = codec_of(folders["qwen2"], REASONING.replace("<think>\n{%", f"{opening}{{%"))
    cut = chat.decode(chat.encode_response(" I get \\boxed{5}."))
    ended = chat.decode(chat.encode_response(f" I get \\boxed{{5}}.{closing}\\boxed{{6}}"))
    assert [final_answer(text) for text in (cut, ended)] == ["", "\\boxed{6}"]


def test_no_template(folders, tmp_path):
    AutoModelForCausalLM.from_pretrained(folders["qwen2"]).save_pretrained(tmp_path)
    made = AutoTokenizer.from_pretrained(folders["qwen2"])
    made.chat_template = None
    made.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"no chat template.*instruct model.*chat_template\.jinja"):
        codec_of(tmp_path)


def test_template_refuses_the_prompt(folders):
    chat = codec_of(folders["qwen2"], NO_SYSTEM)
    assert chat.encode(QUESTION[1:])
    with pytest.raises(UserError, match=r"system \+ user \(System role not supported\).*edit"):
        chat.encode(QUESTION)


def test_template_cannot_use_the_type_of_a_variable(folders):
    chat = codec_of(folders["qwen2"], "{{ 'x' + 3 if messages[0]['content'] != '?' }}")
    with pytest.raises(UserError, match=r"refuses a prompt of .*can only concatenate str"):
        chat.encode(QUESTION)


def test_no_end_token(folders):
    model, made = pretrained(folders["qwen2"]).model(), pretrained(folders["qwen2"]).tokenizer()
    model.generation_config.eos_token_id = made.eos_token = None
    with pytest.raises(UserError, match="has no end token"):
        ChatTemplate(made, model)


def damaged(folders, tmp_path, what):
    """A copy of a good model with something gone."""
    if what == "empty":
        return tmp_path
    config = transformers.AutoConfig.from_pretrained(folders["qwen2"])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return tmp_path


@pytest.mark.parametrize("what", ["empty", "half a file"])
def test_incomplete_folder(what, folders, tmp_path):
    path = damaged(folders, tmp_path, what)
    with pytest.raises(UserError) as error:
        pretrained(path).model()
    assert str(error.value).startswith(f"model.path={path}: the folder holds no model")
    assert "as save_pretrained writes them" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_folder(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: no such folder; give a folder with a model"):
        pretrained(tmp_path / "nowhere").model()


def hub(monkeypatch, error, message):
    """The hub fails as transformers reports it."""

    def fail(*args, **kwargs):
        raise OSError(message) from error

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)


def test_unreachable_model(monkeypatch):
    hub(monkeypatch, None, "We couldn't connect to the hub.\nCheck your internet connection")
    with pytest.raises(UserError, match=r"^[^\n]*couldn't connect[^\n]*hf download Qwen/Q --local"):
        pretrained("Qwen/Q").model()


def test_missing_attention(folders):
    chosen = pretrained(
        folders["qwen2"], "model.attention=flash_attention_2", "model.compute_dtype=bfloat16"
    )
    with pytest.raises(UserError, match=r"^model\.attention=flash_attention_2: [^\n]*use sdpa"):
        chosen.model()


def test_no_flash_attention_in_float32(folders):
    model = pretrained(folders["qwen2"]).model()
    model.config._attn_implementation_internal = "flash_attention_2"
    assert NativeSampler(model, [1], 4, None).model.config._attn_implementation == "sdpa"
