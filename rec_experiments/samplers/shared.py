"""Responses shared by the jobs of a sweep on this machine: the first job that samples them writes
them to a file.

Runs of one seed begin with the same weights and sample the same responses from them. A file's name
is a digest of everything that the native sampler's responses depend on, so reading them changes
nothing but the time.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rec_experiments.common.batch import Responses, SampleKey
from rec_experiments.common.distributed import digest_of
from rec_experiments.common.files import read_whole, write_with_digest
from rec_experiments.common.protocols import Sampler
from rec_experiments.samplers.decoding import NativeSampler
from rec_experiments.samplers.native import Native

# The environment variable that names the folder. A launcher sets it for its jobs; a single run
# shares nothing.
FOLDER = "REC_SHARED_DRAWS"


def among_jobs(config: object, sampler: Sampler) -> "SharedDraws | None":
    """The sampler with shared responses, if FOLDER is set and it is the native sampler itself, not
    a subclass, on a CPU, where models, digests and files are small."""
    folder = os.environ.get(FOLDER)
    if not folder or type(config) is not Native or type(sampler) is not NativeSampler:
        return None
    return SharedDraws(sampler, Path(folder)) if sampler.model.device.type == "cpu" else None


class SharedDraws:
    """Implements `protocols.Sampler`: it samples only what is not in the folder.

    A damaged file counts as absent, and a folder that is not writable is ignored. Jobs that need
    the same responses at the same time all sample them: waiting would take as long.
    """

    def __init__(self, sampler: NativeSampler, folder: Path) -> None:
        self.sampler, self.folder = sampler, folder
        self._weights: str | None = None  # their digest, computed when needed

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights into the sampler."""
        self._weights = None
        self.sampler.load(weights)

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> Responses:
        """What the sampler returns, bit for bit."""
        file = self.folder / f"{self._name(prompts, draws, temperature)}.pt"
        found = _unpack(read_whole(file), sum(map(len, draws)))
        if found is None:
            found = self.sampler.sample(prompts, draws, temperature)
            with contextlib.suppress(OSError):
                write_with_digest(file, _pack(found))
        return found

    def _name(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> str:
        """A digest of everything that the responses depend on."""
        sampler, model = self.sampler, self.sampler.model
        if self._weights is None:
            self._weights = digest_of(model.state_dict())
        depends_on = (
            self._weights,
            type(model).__name__,
            model.config.to_json_string(use_diff=False),
            model.config._attn_implementation,
            model.dtype,
            model.device,
            sampler.eos.tolist(),
            sampler.limit,
            sampler.max_rows,
            sampler.decoder is None,
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            prompts,
            draws,
            temperature,
        )
        return hashlib.blake2b(repr(depends_on).encode(), digest_size=16).hexdigest()


def _pack(responses: Responses) -> bytes:
    buffer = io.BytesIO()
    torch.save(responses.state(), buffer)
    return buffer.getvalue()


def _unpack(data: bytes | None, count: int) -> Responses | None:
    """The inverse of `_pack`, or None if the data is not that many responses."""
    try:
        found = Responses(**torch.load(io.BytesIO(data or b""), weights_only=True))
    except Exception:  # for damaged files torch raises several unrelated types
        return None
    return found if len(found) == count else None
