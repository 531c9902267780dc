"""vLLM's own servers as the sampler: one or several, each on any number of devices, on any machine.

`python -m rec_experiments serve` starts a server. Weights reach it as files in a folder that both
can read, token ids and log-probabilities travel over HTTP. Three checks keep the two together: the
model and its settings when a run starts, a canary after each push, and the name of the push that
the server gives with every token.

Tested with vLLM 0.32 on a CPU, with one server and with two.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
import os
import secrets
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, NoReturn

from pydantic import Field, PositiveFloat, PositiveInt

from rec_experiments.common.batch import SampleKey
from rec_experiments.common.errors import UserError
from rec_experiments.samplers.vllm import (
    ENVIRONMENT,
    EngineSampler,
    Turn,
    Vllm,
    Written,
    check_names,
    engine_arguments,
    saved_config,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

AT_ONCE = 1 << 30  # bytes of weights in a file: what the process that pushes holds as a copy
MEMORY = Path("/dev/shm")  # files here do not touch a disk
CANARY = 16  # tokens
# The most by which their log-probabilities may differ from the trainer's on average.
ALIKE = {"float32": 1e-2, "bfloat16": 0.2}
ENTRY = "vllm.entrypoints.launchers.api_server.entry"
DIVERGED = -9999.0  # what vLLM says in place of a log-probability that is not finite


class VllmServer(Vllm):
    """vLLM servers; conf/sampler/vllm_server.yaml explains the values."""

    for_all_ranks: ClassVar[bool] = True

    url: Annotated[list[str], Field(min_length=1)] | str
    folder: str | None
    tensor_parallel_size: PositiveInt
    timeout: PositiveFloat

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sleep:
            raise ValueError("sleep=true: must be false, the devices of a server are its own")
        for url in self.urls:
            address(url)

    @property
    def urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else self.url

    def check(self) -> None:
        """The servers are asked when the model is there to compare with."""

    def started(self, *given: Any) -> ServerSampler:
        """Raises UserError if a server does not answer, or serves something else."""
        return ServerSampler(self, *given)

    def command(self, model: PreTrainedModel, longest: int) -> tuple[list[str], dict[str, str]]:
        """The command that starts the server of the first url, and its environment."""
        import torch

        host, port = address(self.urls[0])
        arguments = {
            **engine_arguments(self, model, longest),
            "worker_extension_cls": f"{__name__}.FileReceiver",
            "model": str(saved_config(model)),
            "tensor_parallel_size": self.tensor_parallel_size,
            "host": host,
            "port": port,
            "tokens_only": True,
            "disable_uvicorn_access_log": True,
            # On a CPU a seeded request fails if its prompt is computed in chunks.
            "enable_chunked_prefill": torch.cuda.is_available(),
        }
        words = [word for name, value in arguments.items() for word in _flag(name, value)]
        environment = {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "WARNING", **os.environ}
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # serves what a trainer needs
        del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
        return [sys.executable, "-m", ENTRY, *words], environment


class ServerSampler(EngineSampler):
    """Draws with all servers at once: the responses to a prompt come from one of them, which keeps
    the prompt in its cache."""

    def __init__(
        self,
        config: VllmServer,
        model: PreTrainedModel,
        eos_ids: list[int],
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> None:
        super().__init__(eos_ids, max_prompt_tokens, max_response_tokens)
        import torch

        self.model, self.names = model, set(model.state_dict())
        arguments = engine_arguments(config, model, self.longest)
        self.dtype = getattr(torch, arguments["dtype"])
        self.temperature, self.alike = config.temperature, ALIKE[arguments["dtype"]]
        self.servers = [Server(url, config.timeout) for url in config.urls]
        self.folder = _folder(config)
        self.pool = ThreadPoolExecutor(config.max_num_seqs * len(self.servers))
        self.run, self.pushes = secrets.token_hex(4), 0
        expected = described(model.config, arguments)
        self._all(lambda server: server.compare(expected))

    @property
    def push(self) -> str:
        """The name of the weights that the servers have."""
        return f"{self.run}-{self.pushes}"

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Send the weights to all servers, and compare a few log-probabilities of each server with
        those that the model of transformers computes from the same weights.

        Raises ValueError if a parameter is missing or unknown, UserError if a server cannot be
        reached or differs.
        """
        check_names(weights, self.names)
        self.pushes += 1
        try:
            self._write(weights)
            self._all(lambda server: server.push(self.folder, self.push))
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        # Token 0 is often padding, whose embedding says nothing.
        middle = self.model.config.get_text_config().vocab_size // 2
        turn = Turn([middle], SampleKey(0, 0, 0, 0, 0), min(CANARY, self.limit))
        for server, (tokens, logps) in zip(
            self.servers, self._all(lambda server: self._ask(server, turn, self.temperature)),
            strict=True,
        ):  # fmt: skip
            self._compare(server, weights, turn.prompt + tokens, logps)

    def _write(self, weights: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save_file

        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700, parents=True)
            for number, part in enumerate(chunks(self._cast(weights), AT_ONCE)):
                save_file(part, self.folder / f"{number:06}.safetensors")
        except OSError as error:
            raise UserError(
                f"sampler.folder={self.folder}: cannot be written ({error.strerror or error}); "
                "name another folder, which the servers can read"
            ) from error

    def _cast(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The weights in the servers' dtype, on the host, cast where they are; tied weights are two
        copies."""
        for name in weights:
            yield name, weights[name].detach().to(self.dtype, copy=True).cpu().contiguous()

    def _compare(
        self, server: Server, weights: Mapping[str, Tensor], tokens: list[int], logps: list[float]
    ) -> None:
        import torch
        from torch.func import functional_call

        model, training = self.model, self.model.training
        device = next(iter(weights.values())).device
        try:
            with torch.no_grad():
                # Tied weights have both of their names in `weights`.
                logits_1TV = functional_call(
                    model.eval(),
                    dict(weights),
                    torch.tensor([tokens], device=device),
                    tie_weights=False,
                ).logits
        finally:
            model.train(training)
        own_TV = (logits_1TV[0, :-1].float() / self.temperature).log_softmax(-1)
        chosen_T = torch.tensor(tokens[1:], device=device)
        own_T = own_TV.gather(-1, chosen_T[:, None])[:, 0].cpu()
        apart = float((own_T - torch.tensor(logps)).abs().mean())
        if math.isfinite(apart) and apart > self.alike:
            raise UserError(
                f"sampler.url={server.url}: after a push of weights the log-probabilities of "
                f"{len(logps)} tokens differ from the trainer's by {apart:.2g} on average, more "
                f"than {self.alike:g}; the server does not hold these weights: start it again"
            )

    def write(self, turns: list[Turn], temperature: float) -> list[Written]:
        """Raises UserError if a server fails, or another run has replaced its weights."""
        places = {tuple(turn.prompt): None for turn in turns}
        chosen = dict(zip(places, range(len(places)), strict=True))

        def one(turn: Turn) -> Written:
            number = chosen[tuple(turn.prompt)] % len(self.servers)
            return self._ask(self.servers[number], turn, temperature)

        return [*self.pool.map(one, turns)]

    def _ask(self, server: Server, turn: Turn, temperature: float) -> Written:
        body = {
            "token_ids": turn.prompt, "sampling_params": self.parameters(turn, temperature)
        }  # fmt: skip
        [text] = server.post("inference/v1/generate", body)["choices"]
        names = {span["version"] for span in text["weight_versions"] or ()}
        if names != {self.push}:
            raise UserError(
                f"sampler.url={server.url}: a response comes from the weights {', '.join(names)}, "
                f"not from {self.push}, which this run has pushed; another run uses the server"
            )
        logps = [token["logprob"] for token in text["logprobs"]["content"]]
        return text["token_ids"], [math.nan if x == DIVERGED else x for x in logps]

    def _all(self, call: Callable[[Server], Any]) -> list[Any]:
        """The results of all servers, which work at the same time."""
        return [*self.pool.map(call, self.servers)]


class Server(NamedTuple):
    """timeout: seconds that an answer may take."""

    url: str
    timeout: float

    def compare(self, expected: dict[str, Any]) -> None:
        """Raise UserError unless the server has the run's model and settings."""
        for found in self.call("described"):
            for name, value in expected.items():
                if found.get(name) != value:
                    raise UserError(
                        f"sampler.url={self.url}: the server was started with {name}="
                        f"{found.get(name)}, this run needs {value}; start it with this run's "
                        "overrides, as in python -m rec_experiments serve …"
                    )

    def push(self, folder: Path, name: str) -> None:
        """Load the files into the engine and forget what it has computed before."""
        self.call("receive_files", str(folder))
        self.post("reset_prefix_cache")
        self.post("update_weight_version", {"new_version": name})

    def call(self, method: str, *words: str) -> list[Any]:
        """The results of a method of `FileReceiver` in each process of the engine."""
        return self.post("collective_rpc", {"method": method, "args": words})["results"]

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/{path}",
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
        )
        # A cluster's proxy does not reach its own nodes.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.timeout) as answer:
                text = answer.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            self._fail(f"answered {error.code} to {path}: {_reason(error)}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            self._fail(f"does not answer ({' '.join(str(reason).split()) or type(error).__name__})")

    def _fail(self, what: str) -> NoReturn:
        raise UserError(
            f"sampler.url={self.url}: the server {what}; start it with python -m rec_experiments "
            "serve and this run's overrides, then the same command begins or resumes the run"
        )


class FileReceiver:
    """Mixed into vLLM's worker class in each process of a server."""

    def described(self: Any) -> dict[str, Any]:
        """What the run compares with its own."""
        config = self.vllm_config.model_config
        return described(
            config.hf_config,
            {
                "dtype": str(config.dtype).removeprefix("torch."),
                "max_model_len": config.max_model_len,
                "logprobs_mode": config.logprobs_mode,
            },
        )

    def receive_files(self: Any, folder: str) -> None:
        """Load all parameters, by their names in transformers, into the engine's tensors."""
        from safetensors.torch import load_file

        from rec_experiments.samplers.vllm import WeightReceiver

        files = sorted(Path(folder).iterdir())
        weights = (named for file in files for named in load_file(file).items())
        WeightReceiver.receive_weights(self, weights)


def described(config: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the server and the run must have in common. config: the model's, of transformers."""
    sizes = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    settings = ("dtype", "max_model_len", "logprobs_mode")
    return {name: getattr(config, name, None) for name in sizes} | {
        name: arguments[name] for name in settings
    }


def chunks(weights: Iterable[tuple[str, Tensor]], most: int) -> Iterator[dict[str, Tensor]]:
    """The weights in order, in chunks of at most `most` bytes, but at least one weight."""
    part: dict[str, Tensor] = {}
    held = 0
    for name, weight in weights:
        if part and held + weight.nbytes > most:
            yield part
            part, held = {}, 0
        part[name] = weight
        held += weight.nbytes
    if part:
        yield part


def address(url: str) -> tuple[str, int]:
    """Host and port. Raises ValueError unless the url is http://HOST:PORT."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "http" and parts.hostname and parts.port and parts.path in ("", "/"):
            return parts.hostname, parts.port
    except ValueError:  # as for a port that is no number
        pass
    raise ValueError(f"url={url}: must be http://HOST:PORT, as in http://localhost:8000")


def _folder(config: VllmServer) -> Path:
    """The folder of a push. Its name is that of the servers, so that what a killed run has left is
    replaced by the next one."""
    name = hashlib.sha256(" ".join(config.urls).encode()).hexdigest()[:16]
    parent = Path(config.folder) if config.folder else MEMORY
    return parent.absolute() / f"rec_experiments-{os.getuid()}-{name}"


def _flag(name: str, value: Any) -> list[str]:
    """An argument of vLLM's engine as words of a command."""
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    return " ".join(text.split())[:200]
