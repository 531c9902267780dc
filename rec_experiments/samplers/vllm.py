"""The vLLM sampler: the engine's weights are replaced in place at each version.

The engine runs inside this process (one device) or drives one worker process per device (tensor
parallelism). It starts with dummy weights and samples from those that `load` gives it; no weight
goes through the disk.

Tested with vLLM 0.32 on a CPU, with one and with two processes. Sleeping, the push to
tensor-parallel workers on GPUs (`_push_ipc`) were never run; tests check them against vLLM's
interface.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt

from rec_experiments.common import distributed
from rec_experiments.common.batch import Responses, SampleKey
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import cache_folder, write_atomic
from rec_experiments.common.pieces import Piece
from rec_experiments.common.rng import integer

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

LEAST_TEMPERATURE = 0.01  # vLLM silently raises a smaller one to this
PUSHED_AT_ONCE = 1 << 30  # bytes of weights per chunk and device
# vLLM reads these at import. An engine in this process takes tensors without copies. Its log lines
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
    tensor_parallel_size: PositiveInt
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

    def check(self) -> None:
        """Raise UserError if vLLM is not installed; it is not imported."""
        if importlib.util.find_spec("vllm") is None:
            raise UserError(
                "sampler=vllm: vLLM is not installed; install this package with its extra vllm (in "
                "a checkout: make install-gpu, or make test-vllm for a CPU), or use sampler=native"
            )

    def bundle(self, model: PreTrainedModel, tokens: int) -> int:
        """As configured. Each call waits for its longest response: fewer calls take less time."""
        return self.batches_per_call

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
        self.check()
        return VllmSampler(self, model, eos_ids, max_prompt_tokens, max_response_tokens)


class VllmSampler:
    """Implements `rec_experiments.common.protocols.Sampler`. Call `load` before the first `sample`.

    eos_ids: each of them ends a response. A response ends after max_response_tokens, or when it and
    its prompt together reach max_prompt_tokens + max_response_tokens.
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
        with _undisturbed(), _told():
            try:
                self.engine = vllm.LLM(
                    str(saved_config(model)),
                    load_format="dummy",
                    skip_tokenizer_init=True,
                    generation_config="vllm",  # not the model's own sampling defaults
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
                    # On a CPU a seeded request fails if its prompt is computed in chunks.
                    enable_chunked_prefill=False if current_platform.is_cpu() else None,
                    **({"weight_transfer_config": {"backend": "ipc"}} if self.devices > 1 else {}),
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
        if self.devices > 1:
            self.engine.init_weight_transfer_engine({"init_info": {"packed": False}})
        self._rest()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the engine's weights in place, and clear its prefix cache. Weights are read one
        at a time, so a sharded model is never gathered as a whole.

        Raises ValueError if a parameter is missing or unknown.
        """
        if weights.keys() != self.names:
            missing, unknown = self.names - weights.keys(), weights.keys() - self.names
            raise ValueError(f"weights do not fit: missing {missing}, unknown {unknown}")
        self._wake()
        cast = ((name, weights[name].detach().to(self.dtype)) for name in weights)
        if self.devices > 1:
            self._push_ipc(cast)
        else:  # within one process weights can be passed one by one
            self.engine.collective_rpc("receive_weights", args=(self.in_process(cast),))
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, which would mix two policies")

    def _push_ipc(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Send weights to the workers on this machine in chunks, through CUDA memory of each
        worker's device. Torch keeps a chunk's memory until the workers release it."""
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

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> Responses:
        """For each prompt one response per key, in the same order.

        temperature: log-probabilities are of softmax(logits / temperature). 0 is greedy, with
        log-probabilities at temperature 1.
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
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        chosen = zip((output.outputs[0].logprobs for output in outputs), tokens, strict=True)
        logps = [
            [at[token].logprob for at, token in zip(of_response, row, strict=True)]
            for of_response, row in chosen
        ]
        if not all(math.isfinite(logp) for row in logps for logp in row):
            raise FloatingPointError("the policy's logits are not finite: it has diverged")
        return Responses.of(tokens, logps, [row[-1] in self.eos_ids for row in tokens])

    def _parameters(self, draw: SampleKey, temperature: float) -> Any:
        return self.vllm.SamplingParams(
            temperature=temperature,
            seed=integer(draw),
            max_tokens=self.limit,
            stop_token_ids=self.eos_ids,
            logprobs=0,  # of the sampled token only
            detokenize=False,
        )


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


def _import_vllm() -> ModuleType:
    os.environ.update({**ENVIRONMENT, **os.environ})
    import vllm

    return vllm


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


def check_devices(engine: int, seen: int, ranks: int) -> None:
    """Raise UserError if an engine on `engine` GPUs cannot run. seen: GPUs that this process sees.
    ranks: training processes, each of which would start an engine."""
    if ranks > 1:
        raise UserError(
            f"sampler=vllm: with ranks={ranks} every engine would start on the first GPU; "
            "pipeline=overlap gives each a GPU of its own, as gpus=8x80gb does"
        )
    if engine > seen:
        raise UserError(
            f"sampler.tensor_parallel_size={engine}: the process that samples sees {seen} GPU; it "
            "sees one with pipeline=overlap, all with pipeline=sequential"
        )


def chunks(weights: Iterable[tuple[str, Tensor]], most: int) -> Iterator[list[tuple[str, Tensor]]]:
    """The weights in order, in chunks of at most `most` bytes, but at least one weight."""
    part: list[tuple[str, Tensor]] = []
    held = 0
    for name, weight in weights:
        if part and held + weight.nbytes > most:
            yield part
            part, held = [], 0
        part.append((name, weight))
        held += weight.nbytes
    if part:
        yield part


def update_info(
    part: list[tuple[str, Tensor]],
    copies: list[list[Tensor]],
    uuids: list[str],
    share: Callable[[Tensor], tuple[Any, Any]],
) -> dict[str, Any]:
    """The message to vLLM's IPC engine about a chunk. copies: of each weight, one on each device of
    `uuids`. share: makes a handle of a tensor, as torch's `reduce_tensor` does."""
    return {
        "names": [name for name, _ in part],
        "dtype_names": [dtype_name(w.dtype) for _, w in part],
        "shapes": [list(w.shape) for _, w in part],
        "ipc_handles": [
            {uuid: share(w)[1] for uuid, w in zip(uuids, row, strict=True)} for row in copies
        ],
    }


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
