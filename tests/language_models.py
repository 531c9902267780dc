"""The language models of tests: SmolLM2, and a tiny one like it."""

from pathlib import Path

import pytest
import torch
import transformers

from rec_experiments.policy import smollm2
from rec_experiments.policy.models import byte_tokenizer

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
SHAPE = {**SIZES, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def smollm2_folder() -> Path:
    """The user's own copy of the model; a test is skipped where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REC_EXPERIMENTS_CACHE")
        folder = smollm2.folder()
    if not folder.is_dir():
        pytest.skip("SmolLM2 is not in the cache: make smollm2")
    return folder


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_llama(folder: Path) -> Path:
    """A random model over bytes with the template of SmolLM2, written there."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.chat_template = CHATML
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=1024,
            tie_word_embeddings=True, initializer_range=0.1, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
