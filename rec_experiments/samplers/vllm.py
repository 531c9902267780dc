"""The vLLM sampler: rollouts by the vLLM engine, its weights replaced in place at each version.

The engine runs inside this process (one device) or drives one worker process per device (tensor
parallelism). It starts with dummy weights and samples from what `load` gives it; no weight goes
through the disk.

What was run: vLLM 0.32 on CPU, with one and with two processes. Sleeping and the push to
tensor-parallel workers on GPUs (`_push_ipc`) are written against the interface of vLLM 0.32, which
the tests hold them to, and were not run. Nor was VLLM_BATCH_INVARIANT, which a process that only
draws on a GPU has in its environment (`determinism.drawing_environment`).
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import random
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rec_experiments import distributed
from rec_experiments.errors import UserError
from rec_experiments.rng import integer
from rec_experiments.samplers.weight_push import (
    PUSHED_AT_ONCE,
    check_devices,
    chunks,
    dtype_name,
    update_info,
)
from rec_experiments.types import Piece, Response, SampleKey

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

DTYPES = ("float32", "bfloat16")
LEAST_TEMPERATURE = 0.01  # vLLM silently raises a smaller one to this
# Read by vLLM when it is imported. The engine belongs in this process: tensors are then handed to
# it, not copied. Its log lines would bury the run's own; VLLM_LOGGING_LEVEL brings them back.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # cores are shared with training
}


@dataclass(kw_only=True)
class Vllm(Piece):
    """Config of the vLLM sampler; the values and their meaning are in conf/sampler/vllm.yaml.

    Raises ValueError for a value out of range. There is no top_p and no top_k: cutting the
    distribution draws from another policy than the one whose probabilities the ratio compares.
    """

    temperature: float
    eval_temperature: float
    dtype: str | None
    tensor_parallel_size: int
    max_num_seqs: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    enforce_eager: bool
    sleep: bool

    def __post_init__(self) -> None:
        if not LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}: must be at least 0.01")
        if self.eval_temperature and not LEAST_TEMPERATURE <= self.eval_temperature < math.inf:
            raise ValueError(
                f"eval_temperature={self.eval_temperature}: must be 0 (greedy) or at least 0.01"
            )
        if self.dtype not in (None, *DTYPES):
            raise ValueError(f"dtype={self.dtype}: must be {', '.join(DTYPES)}, or null")
        for name in ("tensor_parallel_size", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization={self.gpu_memory_utilization}: must be above 0, at most 1"
            )
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes < 1:
            raise ValueError(
                f"kv_cache_memory_bytes={self.kv_cache_memory_bytes}: must be at least 1, or null "
                "for what gpu_memory_utilization leaves"
            )

    def bundle(self, model: PreTrainedModel, tokens: int) -> int:
        """One batch at a time: the engine is busy with that many responses."""
        return 1

    def build(
        self,
        model: PreTrainedModel,
        eos_ids: list[int],
        pad_id: int | None,
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> VllmSampler:
        """A sampler for models of this architecture and dtype; `model` itself is not kept.

        Raises UserError if vLLM is not installed, or refuses the model or the machine.
        """
        return VllmSampler(self, model, eos_ids, max_prompt_tokens, max_response_tokens)


class VllmSampler:
    """Implements `rec_experiments.types.Sampler`. `load` comes before the first `sample`.

    eos_ids: each of them ends a response. A response is cut after max_response_tokens, and where it
    and its prompt reach max_prompt_tokens + max_response_tokens together.
    """

    def __init__(
        self,
        config: Vllm,
        model: PreTrainedModel,
        eos_ids: list[int],
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> None:
        self.vllm = vllm = _import_vllm()
        import torch
        from vllm.platforms import current_platform

        self.eos_ids = eos_ids
        self.limit = max_response_tokens
        self.names = set(model.state_dict())
        self.dtype = getattr(torch, config.dtype) if config.dtype else model.dtype
        self.sleeps, self.asleep = config.sleep, False
        self.in_process: Any = iter if config.tensor_parallel_size == 1 else list
        self.devices = config.tensor_parallel_size if current_platform.is_cuda() else 0
        if self.devices:
            check_devices(self.devices, torch.cuda.device_count(), distributed.current().size)
        with _undisturbed(), tempfile.TemporaryDirectory() as folder:
            _save_config(model, folder)
            try:
                self.engine = vllm.LLM(
                    folder,
                    load_format="dummy",
                    skip_tokenizer_init=True,
                    generation_config="vllm",  # not the sampling defaults that come with a model
                    logprobs_mode="processed_logprobs",  # at the sampling temperature
                    dtype=dtype_name(self.dtype),
                    max_model_len=max_prompt_tokens + max_response_tokens,
                    worker_extension_cls=f"{__name__}.WeightReceiver",
                    tensor_parallel_size=config.tensor_parallel_size,
                    max_num_seqs=config.max_num_seqs,
                    gpu_memory_utilization=config.gpu_memory_utilization,
                    kv_cache_memory_bytes=config.kv_cache_memory_bytes,
                    enforce_eager=config.enforce_eager,
                    enable_sleep_mode=config.sleep,
                    # On a CPU a seeded request fails when its prompt is computed in chunks.
                    enable_chunked_prefill=False if current_platform.is_cpu() else None,
                    **({"weight_transfer_config": {"backend": "ipc"}} if self.devices > 1 else {}),
                )
                # What the machine's kernels cannot do shows only when they run.
                first = vllm.SamplingParams(max_tokens=1, detokenize=False)
                self.engine.generate({"prompt_token_ids": [0]}, first, use_tqdm=False)
            except (ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())[:300]
                raise UserError(
                    f"sampler=vllm: vLLM cannot run this model here ({reason}); change the model "
                    "or use sampler=native"
                ) from error
        if self.devices > 1:
            self.engine.init_weight_transfer_engine({"init_info": {"packed": False}})
        self._rest()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the engine's weights in place, and forget what it cached of the old ones. Weights
        are read one after the other, so that those of a model in parts are never whole at once.

        Raises ValueError if a parameter is missing or unknown.
        """
        if weights.keys() != self.names:
            missing, unknown = self.names - weights.keys(), weights.keys() - self.names
            raise ValueError(f"weights do not fit: missing {missing}, unknown {unknown}")
        self._wake()
        cast = ((name, weights[name].detach().to(self.dtype)) for name in weights)
        if self.devices > 1:
            self._push_ipc(cast)
        else:  # only within a process can weights be handed over one by one
            self.engine.collective_rpc("receive_weights", args=(self.in_process(cast),))
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache: it would mix two policies")

    def _push_ipc(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Weights to the workers through CUDA memory of their own device, all on this machine, a
        chunk at a time: torch keeps a chunk's memory until the workers have let go of it."""
        import torch
        from torch.multiprocessing.reductions import reduce_tensor

        uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(self.devices)]
        self.engine.start_weight_update()
        for part in chunks(weights, PUSHED_AT_ONCE):
            copies = [[w.to(f"cuda:{i}") for i in range(self.devices)] for _, w in part]
            self.engine.update_weights(
                {"update_info": update_info(part, copies, uuids, reduce_tensor)}
            )
        self.engine.finish_weight_update()

    def _wake(self) -> None:
        """Take back the memory that was given up."""
        if self.asleep:
            import torch

            torch.cuda.empty_cache()  # what training no longer needs, but torch still holds
            self.engine.wake_up()
            self.asleep = False

    def _rest(self) -> None:
        """Give up the device's memory until the next draw: the weights go to the host."""
        if self.sleeps:
            self.engine.sleep(level=1)
            self.asleep = True

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> list[list[Response]]:
        """For each prompt one response per draw, in the same order.

        temperature: log-probabilities are of softmax(logits / temperature). 0 takes the likeliest
        token and reports log-probabilities at temperature 1.
        Raises FloatingPointError if the policy's logits are not finite.
        """
        rows = [
            (prompt, draw) for prompt, named in zip(prompts, draws, strict=True) for draw in named
        ]
        self._wake()
        outputs = self.engine.generate(
            [{"prompt_token_ids": prompt} for prompt, _ in rows],
            [self._parameters(draw, temperature) for _, draw in rows],
            use_tqdm=False,
        )
        self._rest()
        responses = iter([self._response(output.outputs[0]) for output in outputs])
        return [[next(responses) for _ in named] for named in draws]

    def _parameters(self, draw: SampleKey, temperature: float) -> Any:
        return self.vllm.SamplingParams(
            temperature=temperature,
            seed=integer(draw),
            max_tokens=self.limit,
            stop_token_ids=self.eos_ids,
            logprobs=0,  # of the drawn token alone
            detokenize=False,
        )

    def _response(self, completion: Any) -> Response:
        tokens = list(completion.token_ids)
        logp = [at[token].logprob for at, token in zip(completion.logprobs, tokens, strict=True)]
        if not all(map(math.isfinite, logp)):
            raise FloatingPointError("the policy's logits are not finite: it has diverged")
        return Response(tokens, logp, tokens[-1] in self.eos_ids, [True] * len(tokens))


class WeightReceiver:
    """What vLLM adds to its worker class, in each worker process."""

    def receive_weights(self: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load all parameters, named as in the transformers model, into the engine's tensors."""
        self.reload_weights(weights_iterator=iter(weights))
        head: Any = getattr(self.model_runner.get_model(), "lm_head", None)
        if hasattr(head, "cpu_linear"):
            # On some CPUs the head multiplies by a packed copy, which reloading forgets if the
            # embeddings are tied.
            head.quant_method.process_weights_after_loading(head)


def _import_vllm() -> ModuleType:
    os.environ.update({**ENVIRONMENT, **os.environ})
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise UserError(
            "sampler=vllm: vLLM is not installed; install this package with its extra vllm in an "
            "environment of its own (make test-vllm makes one for a CPU), or use sampler=native"
        ) from error
    return vllm


def _save_config(model: PreTrainedModel, folder: str) -> None:
    """What vLLM has to read of a model: its configuration, with the architecture's name."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Starting vLLM reseeds python, numpy and torch and disables torch.set_num_threads; undo it."""
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
