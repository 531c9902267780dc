"""The vLLM sampler inside this process, on one device: the engine's weights are replaced in place
at each version. `vllm_server` is for several devices.

The engine starts with dummy weights and samples from those that `load` gives it; no weight goes
through the disk. Tested with vLLM 0.32 on a CPU. Sleeping was never run; a test checks the calls
against vLLM's interface.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import math
import os
import random
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveInt

from rec_experiments.common import distributed
from rec_experiments.common.batch import Responses, SampleKey
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import cache_folder, write_atomic
from rec_experiments.common.pieces import Piece
from rec_experiments.common.rng import integer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

LEAST_TEMPERATURE = 0.01  # vLLM silently raises a smaller one to this
# An engine in this process takes tensors without copies. Its log lines
# would bury the run's own; set VLLM_LOGGING_LEVEL to see them.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # cores are shared with training
}


class Vllm(Piece):
    """The vLLM sampler; conf/sampler/vllm.yaml explains the values.

    There is no top_p and no top_k: with a truncated
    distribution, samples come from another policy than the one in the importance ratio.
    """

    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)]
    eval_temperature: float
    dtype: Literal["float32", "bfloat16"] | None
    max_num_seqs: PositiveInt
    batches_per_call: PositiveInt
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    kv_cache_memory_bytes: PositiveInt | None
    enforce_eager: bool
    sleep: bool

    def __post_init__(self) -> None:
        if self.eval_temperature and self.eval_temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"eval_temperature={self.eval_temperature}: must be at least {LEAST_TEMPERATURE}, "
                "or 0 for greedy"
            )

    for_all_ranks: ClassVar[bool] = False

    def check(self) -> None:
        check_installed()

    def bundle(self, model: PreTrainedModel, tokens: int) -> int:
        """As configured. Each call waits for its longest response: fewer calls take less time."""
        return self.batches_per_call

    def build(
        self,
        model: PreTrainedModel,
        eos_ids: list[int],
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> EngineSampler:
        """A sampler for models of this architecture and dtype; `model` itself is not kept.

        Raises UserError if vLLM is not installed, or refuses the model or the machine.
        """
        self.check()
        return self.started(model, eos_ids, max_prompt_tokens, max_response_tokens)

    def started(self, *given: Any) -> EngineSampler:
        return VllmSampler(self, *given)


Written = tuple[list[int], list[float]]  # tokens and their log-probabilities


class Turn(NamedTuple):
    """What the engine writes at once: at most `most` tokens after `prompt`."""

    prompt: list[int]
    key: SampleKey
    most: int


class EngineSampler(ABC):
    """What `VllmSampler` and `ServerSampler` have in common: both implement
    `rec_experiments.common.protocols.InFlightSampler`. Call `load` before the first `sample`.

    eos_ids: each of them ends a response. A response ends after max_response_tokens, or when it and
    its prompt together reach max_prompt_tokens + max_response_tokens.
    """

    def __init__(
        self, eos_ids: list[int], max_prompt_tokens: int, max_response_tokens: int
    ) -> None:
        self.eos_ids = eos_ids
        self.limit, self.longest = max_response_tokens, max_prompt_tokens + max_response_tokens

    @abstractmethod
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the engine's weights, and clear its cache of prefixes."""

    @abstractmethod
    def write(self, turns: list[Turn], temperature: float) -> list[Written]:
        """One text for each turn, in order."""

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> Responses:
        """For each prompt one response per key, in the same order.

        temperature: log-probabilities are of softmax(logits / temperature). 0 is greedy, with
        log-probabilities at temperature 1.
        Raises FloatingPointError if the policy's logits are not finite.
        """
        return self._responses(
            self.write(
                [
                    Turn(prompt, key, min(self.limit, self.longest - len(prompt)))
                    for prompt, named in zip(prompts, draws, strict=True)
                    for key in named
                ],
                temperature,
            )
        )

    def sample_in_flight(
        self,
        prompts: list[list[int]],
        draws: list[list[SampleKey]],
        temperature: float,
        policies: Sequence[tuple[int, Mapping[str, Tensor]]],
        keeps_cache: bool,
    ) -> Responses:
        """As `sample`, by several policies; see `InFlightSampler`. Each policy begins with an empty
        cache and continues the responses that have not ended. Its part has random numbers of its
        own, named as those of a later turn."""
        assert not keeps_cache  # the experiment refuses it
        pairs = [(p, key) for p, named in zip(prompts, draws, strict=True) for key in named]
        written: list[Written] = [([], []) for _ in pairs]
        ends = [first for first, _ in policies[1:]] + [self.limit]
        for number, ((_, weights), end) in enumerate(zip(policies, ends, strict=True)):
            self.load(weights)
            unended = {
                n: Turn(prompt + tokens, replace(key, turn=number), most)
                for n, ((prompt, key), (tokens, _)) in enumerate(zip(pairs, written, strict=True))
                if not (tokens and tokens[-1] in self.eos_ids)
                if (most := min(end, self.longest - len(prompt)) - len(tokens)) > 0
            }
            for n, (tokens, logps) in zip(
                unended, self.write([*unended.values()], temperature), strict=True
            ):
                written[n] = written[n][0] + tokens, written[n][1] + logps
        return self._responses(written)

    def _responses(self, written: list[Written]) -> Responses:
        tokens, logps = [row for row, _ in written], [row for _, row in written]
        if not all(math.isfinite(logp) for row in logps for logp in row):
            raise FloatingPointError("the policy's logits are not finite: it has diverged")
        return Responses.of(tokens, logps, [row[-1] in self.eos_ids for row in tokens])

    def parameters(self, turn: Turn, temperature: float) -> dict[str, Any]:
        """The arguments of vLLM's SamplingParams."""
        return {
            "temperature": temperature,
            "seed": integer(turn.key),
            "max_tokens": turn.most,
            "stop_token_ids": self.eos_ids,
            "logprobs": 0,  # of the sampled token only
            "detokenize": False,
        }


class VllmSampler(EngineSampler):
    """The engine in this process."""

    def __init__(
        self,
        config: Vllm,
        model: PreTrainedModel,
        eos_ids: list[int],
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> None:
        super().__init__(eos_ids, max_prompt_tokens, max_response_tokens)
        os.environ.update({**ENVIRONMENT, **os.environ})  # vLLM reads them at import
        import torch
        import vllm
        from vllm.platforms import current_platform

        self.vllm, self.names = vllm, set(model.state_dict())
        self.dtype = getattr(torch, config.dtype) if config.dtype else model.dtype
        self.sleeps, self.asleep = config.sleep, False
        if current_platform.is_cuda():
            check_ranks(distributed.current().size)
        with _undisturbed(), _told():
            try:
                self.engine = vllm.LLM(
                    str(saved_config(model)),
                    **engine_arguments(config, model, self.longest),
                    enable_sleep_mode=config.sleep,
                    # On a CPU a seeded request fails if its prompt is computed in chunks.
                    enable_chunked_prefill=False if current_platform.is_cpu() else None,
                )
                # Unsupported kernels fail only when they run.
                first = vllm.SamplingParams(max_tokens=1, detokenize=False)
                self.engine.generate({"prompt_token_ids": [0]}, first, use_tqdm=False)
            except (ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())[:300]
                raise UserError(
                    f"sampler=vllm: vLLM cannot run this model here ({reason}); change the model "
                    "or use sampler=native"
                ) from error
        self._rest()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the engine's weights in place, and clear its prefix cache. Weights are read one
        at a time, so a sharded model is never gathered as a whole.

        Raises ValueError if a parameter is missing or unknown.
        """
        check_names(weights, self.names)
        self._wake()
        cast = ((name, weights[name].detach().to(self.dtype)) for name in weights)
        self.engine.collective_rpc("receive_weights", args=(cast,))
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, which would mix two policies")

    def _wake(self) -> None:
        """Take the device's memory again."""
        if self.asleep:
            import torch

            torch.cuda.empty_cache()  # memory that training freed, but torch still holds
            self.engine.wake_up()
            self.asleep = False

    def _rest(self) -> None:
        """Free the device's memory until the next call; the weights move to the host."""
        if self.sleeps:
            self.engine.sleep(level=1)
            self.asleep = True

    def write(self, turns: list[Turn], temperature: float) -> list[Written]:
        self._wake()
        outputs = self.engine.generate(
            [{"prompt_token_ids": turn.prompt} for turn in turns],
            [self.vllm.SamplingParams(**self.parameters(turn, temperature)) for turn in turns],
            use_tqdm=False,
        )
        self._rest()
        return [_written(output.outputs[0]) for output in outputs]


def _written(text: Any) -> Written:
    tokens = [*text.token_ids]
    return tokens, [at[token].logprob for at, token in zip(text.logprobs, tokens, strict=True)]


class WeightReceiver:
    """Mixed into vLLM's worker class in each worker process."""

    def receive_weights(self: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load all parameters, by their names in transformers, into the engine's tensors."""
        self.reload_weights(weights_iterator=iter(weights))
        head: Any = getattr(self.model_runner.get_model(), "lm_head", None)
        if hasattr(head, "cpu_linear"):
            # On some CPUs the head uses a packed copy of its weight, which reloading does not
            # update if the embeddings are tied.
            head.quant_method.process_weights_after_loading(head)


def engine_arguments(config: Vllm, model: PreTrainedModel, longest: int) -> dict[str, Any]:
    """Arguments of vLLM's engine, in a process or behind a server. longest: tokens of a prompt and
    its response."""
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # not the model's own sampling defaults
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature
        "dtype": config.dtype or str(model.dtype).removeprefix("torch."),
        "max_model_len": longest,
        "worker_extension_cls": f"{__name__}.WeightReceiver",
        "max_num_seqs": config.max_num_seqs,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "kv_cache_memory_bytes": config.kv_cache_memory_bytes,
        "enforce_eager": config.enforce_eager,
    }


def check_installed() -> None:
    """Raise UserError if vLLM is not installed; it is not imported."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "sampler=vllm: vLLM is not installed; install this package with its extra vllm (in a "
            "checkout: make install-gpu, or make test-vllm for a CPU), or use sampler=native"
        )


def check_names(weights: Mapping[str, Tensor], names: set[str]) -> None:
    """Raise ValueError unless the weights are the model's."""
    if weights.keys() != names:
        missing, unknown = names - weights.keys(), weights.keys() - names
        raise ValueError(f"weights do not fit: missing {missing}, unknown {unknown}")


def check_ranks(ranks: int) -> None:
    """Raise UserError if several training processes would each start an engine on the first GPU."""
    if ranks > 1:
        raise UserError(
            f"sampler=vllm: with ranks={ranks} every engine would start on the first GPU; "
            "pipeline=overlap gives each a GPU of its own, as gpus=8x80gb does"
        )


def saved_config(model: PreTrainedModel) -> Path:
    """A folder in the cache with the configuration that vLLM reads, which names the architecture.

    Equal configurations share a folder, since vLLM finds what it compiled before by the folder's
    name. Raises UserError if the cache is not writable.
    """
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    text = config.to_json_string().encode()
    name = hashlib.sha256(text).hexdigest()[:16]
    try:
        folder = cache_folder() / "vllm" / name
        if not (folder / "config.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / "config.json", text)
    except OSError as error:
        raise UserError(
            f"sampler=vllm: the cache folder cannot be written ({error}); name another one in the "
            "environment variable REC_EXPERIMENTS_CACHE"
        ) from error
    return folder


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Lines around the engine's start, which is silent and may take minutes."""
    leads = distributed.current().leads
    if leads:
        print(
            "vLLM is starting; the first time it compiles for minutes, and "
            "VLLM_LOGGING_LEVEL=INFO shows what it does",
            file=sys.stderr,
        )
    started = time.perf_counter()
    yield
    if leads:
        print(f"vLLM has started in {time.perf_counter() - started:.0f} s", file=sys.stderr)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Undo what starting vLLM does: it reseeds all generators and disables set_num_threads."""
    import numpy as np
    import torch

    python, arrays = random.getstate(), np.random.get_state()
    threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    with (
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about vLLM's own code
        try:
            yield
        finally:
            torch.set_num_threads = set_num_threads
            torch.set_num_threads(threads)
            random.setstate(python)
            np.random.set_state(arrays)
