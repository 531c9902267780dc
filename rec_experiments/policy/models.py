"""The model choices of a configuration. Transformers is imported only when a model is built."""

import contextlib
import copy
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rec_experiments.common import files, live
from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.pieces import Piece, Seed, Settings
from rec_experiments.policy import smollm2

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

CACHE = "cache"
# No float16: small gradients would become 0 without loss scaling.
Dtype = Literal["float32", "bfloat16"]
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'system' %}{{ '\\n' }}{% endif %}{% endfor %}"
)


@runtime_checkable
class ModelChoice(Protocol):
    """compute_dtype: of forward and backward pass; float32 means that of the weights."""

    @property
    def compute_dtype(self) -> str: ...

    def tokenizer(self) -> "PreTrainedTokenizerFast": ...

    def model(self) -> "PreTrainedModel":
        """Build or load the model. Raises UserError for what the user can fix."""

    def describe(self) -> str:
        """The model in words."""


class WarmStart(Settings):
    """A short supervised phase on a data set's demonstrations, in the dtype of the weights.

    steps: gradient steps. batch_size: demonstrations in each. learning_rate: the peak of a cosine.
    seed: of random weights, demonstrations and their order; runs with other seeds share it.
    """

    steps: NonNegativeInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    seed: Seed


class Tiny(Piece):
    """A small Qwen2 over bytes with random weights; nothing is downloaded.

    hidden_size, layers, heads, intermediate_size: as in Qwen2. init_std: standard deviation of the
    initial weights. context: tokens of prompt and response together.
    """

    hidden_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    intermediate_size: PositiveInt
    init_std: PositiveFloat
    context: PositiveInt
    warm_start: WarmStart
    compute_dtype: ClassVar[str] = "float32"  # no other is of use at this size

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"heads={self.heads}: 2 x heads must divide hidden_size={self.hidden_size}"
            )

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        return byte_tokenizer()

    def model(self) -> "PreTrainedModel":
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        tokenizer = self.tokenizer()
        torch.manual_seed(self.warm_start.seed)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=self.hidden_size,
                intermediate_size=self.intermediate_size,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.heads,
                max_position_embeddings=self.context,
                initializer_range=self.init_std,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )

    def describe(self) -> str:
        return f"tiny Qwen2, {self.layers} layers of width {self.hidden_size}, bytes as tokens"


class Pretrained(Piece):
    """A causal language model of transformers, by hub name or local folder, or one of this process.

    dtype: of weights, gradients and sampling. compute_dtype: of autocast in the trainer's forward
    and backward pass; float32 keeps that of the weights. attention: an implementation, by its name
    in transformers. gradient_checkpointing: recompute activations in the backward pass. packed:
    pack the trainer's sequences into one row, without padding. shared_prompts: compute a prompt
    once for all of its responses in a micro-batch. compile_layers: torch.compile the trainer's
    layers. chat_template_kwargs: variables of the chat template, by name.
    """

    path: str
    dtype: Dtype
    compute_dtype: Dtype
    attention: Literal[
        "eager", "sdpa", "flex_attention",
        "flash_attention_2", "flash_attention_3", "flash_attention_4",
    ]  # fmt: skip
    gradient_checkpointing: bool
    packed: bool
    shared_prompts: bool
    compile_layers: bool
    chat_template_kwargs: dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")], JsonValue]

    def __post_init__(self) -> None:
        if self.attention.startswith("flash") and {self.dtype, self.compute_dtype} == {"float32"}:
            raise ValueError(
                f"attention={self.attention}: needs compute_dtype=bfloat16; in float32 use sdpa"
            )
        if self.shared_prompts and self.attention != "sdpa":
            raise ValueError(
                f"attention={self.attention}: must be sdpa with shared_prompts=true; no other "
                "implementation takes its mask"
            )
        if self.shared_prompts and self.packed:
            raise ValueError("packed=true: must be false with shared_prompts=true")

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        from transformers import AutoTokenizer

        if live.is_live(self.path):
            _, tokenizer = live.find(self.path, "model.path")
            tokenizer = copy.deepcopy(tokenizer)
        else:
            tokenizer = self._load(AutoTokenizer)
        for name in self.chat_template_kwargs if tokenizer.chat_template else ():
            if not re.search(rf"\b{name}\b", str(tokenizer.chat_template)):
                raise UserError(
                    f"model.chat_template_kwargs.{name}: the chat template of {self.path} has no "
                    "such variable"
                )
        tokenizer.chat_template = self._with_values(tokenizer.chat_template)
        return tokenizer

    def _with_values(self, template: Any) -> Any:
        """The template, or templates by name, with `chat_template_kwargs` as defaults of its
        variables. So an exported model formats prompts as in training."""
        if isinstance(template, dict):
            return {name: self._with_values(each) for name, each in template.items()}
        values = self.chat_template_kwargs.items()
        set_all = "".join(f"{{% set {n} = {n} | default({v!r}) %}}" for n, v in values)
        return template and set_all + template

    def model(self) -> "PreTrainedModel":
        import torch
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, self.dtype)
        try:
            if live.is_live(self.path):
                original, _ = live.find(self.path, "model.path")  # which stays as it is
                model = copy.deepcopy(original).to(device="cpu", dtype=dtype)
                model.set_attn_implementation(self.attention)
            else:
                model = self._load(
                    AutoModelForCausalLM, dtype=dtype, attn_implementation=self.attention
                )
        except ImportError as error:  # the package of an attention
            raise UserError(
                f"model.attention={self.attention}: cannot be used here ({first_line(error)}); "
                "use sdpa, which needs only torch"
            ) from error
        return self._checked(model)

    def _checked(self, model: "PreTrainedModel") -> "PreTrainedModel":
        self.check_family(model)
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        return model

    def check_family(self, model: "PreTrainedModel") -> None:
        """Raise UserError if prompts are to be shared and the model cannot: its head is more than a
        linear layer, or its attention has a sliding window."""
        from rec_experiments.policy.logprobs import has_plain_head

        window = getattr(model.config, "sliding_window", None)
        if self.shared_prompts and (window or not has_plain_head(model)):
            reason = f"a window of {window} tokens" if window else "more than a linear head"
            raise UserError(
                f"model.shared_prompts=true: a {model.config.model_type} with {reason} cannot "
                "share prompts; use shared_prompts=false"
            )

    def shape(self) -> "PretrainedConfig":
        """The configuration of the model's architecture."""
        from transformers import AutoConfig

        return self._load(AutoConfig)

    def skeleton(self) -> "PreTrainedModel":
        """The model without initialised weights, whose memory is never touched."""
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.initialization import no_init_weights

        if live.is_live(self.path):
            return self.model()
        config = self.shape()
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, self.dtype), attn_implementation=self.attention
            )
        model.tie_weights()  # which initialisation does otherwise
        with contextlib.suppress(OSError):  # some models have none
            model.generation_config = GenerationConfig.from_pretrained(self.place)
        return self._checked(model.eval())

    def stored(self, skeleton: "PreTrainedModel") -> "StoredWeights | None":
        """The weights on disk for a skeleton, each read when it is looked up; None if the files of
        the model do not hold exactly these, as where the library converts them."""
        from safetensors import SafetensorError

        from rec_experiments.common.distributed import memory_of

        if live.is_live(self.path) or hasattr(skeleton.config, "quantization_config"):
            return None
        try:
            shapes = _shapes_in(Path(self.place))
        except (OSError, SafetensorError):  # the library says what is wrong
            return None
        files_of: dict[str, tuple[Path, str]] = {}
        owner: dict[Any, str] = {}  # of tied weights the name that has a file
        own = skeleton.state_dict()
        for name in sorted(own, key=lambda name: name not in shapes):
            source = owner.setdefault(memory_of(own[name]), name)
            file, shape = shapes.get(source, (None, None))
            if file is None or shape != list(own[name].shape):
                return None
            files_of[name] = file, source
        return StoredWeights(files_of)

    @property
    def place(self) -> str:
        """The path, where `cache:NAME` stands for a folder that a command put into the cache."""
        scheme, _, name = self.path.partition(":")
        return str(files.cache_folder() / name) if scheme == CACHE else self.path

    def _load(self, auto: Any, **options: Any) -> Any:
        from safetensors import SafetensorError
        from transformers.utils import logging

        if not sys.stderr.isatty():
            logging.disable_progress_bar()  # it fills log files
        if not _is_local(self.path):
            files.hub_silence()  # one question to the hub instead of many
        if self.path == f"{CACHE}:{smollm2.NAME}" and smollm2.folder().is_dir():
            smollm2.check(smollm2.folder())
        try:
            return auto.from_pretrained(self.place, **options)
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(f"model.path={self.path}: {_advice(self.path, error)}") from error

    def describe(self) -> str:
        low = "" if self.compute_dtype == "float32" else f", computed in {self.compute_dtype}"
        return f"{self.path}, {self.dtype}{low}"


class StoredWeights(Mapping[str, "Tensor"]):
    """Weights in safetensors files, each read when it is looked up, in the dtype of its file.

    places: the file of each and its name there.
    """

    def __init__(self, places: dict[str, tuple[Path, str]]):
        self.places = places

    def __getitem__(self, name: str) -> "Tensor":
        from safetensors import safe_open

        file, source = self.places[name]
        with safe_open(file, "pt") as tensors:
            return tensors.get_tensor(source)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _shapes_in(folder: Path) -> dict[str, tuple[Path, list[int]]]:
    """File and shape of each tensor in the safetensors files of a folder."""
    from safetensors import safe_open

    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                found[name] = file, tensors.get_slice(name).get_shape()
    return found


class FineTuned(Pretrained):
    """A pretrained model after a short supervised phase, from which RL can begin."""

    warm_start: WarmStart

    def describe(self) -> str:
        return f"{super().describe()}, after {self.warm_start.steps} supervised steps"


class Lora(Settings):
    """Low-rank adapters; conf/adapter/lora.yaml explains the values."""

    rank: PositiveInt
    alpha: PositiveFloat
    targets: Annotated[list[str], Field(min_length=1)]  # as q_proj
    seed: Seed


class Adapted(Pretrained):
    """A pretrained model of which low-rank adapters are trained (policy/lora.py)."""

    lora: Lora

    @model_validator(mode="before")
    @classmethod
    def _of_a_pretrained_model(cls, values: Any) -> Any:
        if "path" not in values.kwargs or "warm_start" in values.kwargs:
            raise UserError(
                "adapter=lora: needs a model of transformers without a warm start, as "
                "model=qwen2.5-1.5b-instruct or model=pretrained"
            )
        return values

    def describe(self) -> str:
        return f"{super().describe()}, adapters of rank {self.lora.rank} trained"


def _advice(path: str, error: Exception) -> str:
    """Why a model could not be loaded, and what to do."""
    from huggingface_hub.errors import GatedRepoError

    if path.startswith(f"{CACHE}:"):
        return (
            "is not in the cache; `make smollm2` downloads and converts it, or give the name of a "
            "model on the hub"
        )
    if Path(path).is_dir():
        return (
            f"the folder holds no model that can be loaded ({first_line(error)}); it needs "
            "configuration, weights and tokenizer, as save_pretrained writes them"
        )
    if _is_local(path):
        return "no such folder; give a folder with a model, or a hub name as OWNER/NAME"
    if isinstance(error.__cause__, GatedRepoError):
        return (
            f"is a gated model; accept its terms at https://huggingface.co/{path}, then set "
            "HF_TOKEN or run `hf auth login`"
        )
    return (
        "no such folder, and it cannot be fetched from the hub "
        f"({files.hub_silence() or first_line(error)}); run `hf download {path} --local-dir "
        "FOLDER` on a machine with network access, and give the folder"
    )


def _is_local(path: str) -> bool:
    """Whether the path cannot be a name on the hub."""
    return path.startswith((".", "/", "~", f"{CACHE}:")) or Path(path).is_dir()


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per byte, so that it encodes any text, and <pad> and <eos>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(["<pad>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    fast.chat_template = PLAIN_TEMPLATE
    return fast
