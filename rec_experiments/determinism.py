"""Switches for deterministic kernels.

A kernel that sums in the order in which its threads finish rounds differently each time. torch can
replace most of these kernels, and raises an error for the others. docs/operations.md says what is
guaranteed on which device.
"""

import contextlib
import os
from collections.abc import Iterator

import torch

from rec_experiments.errors import UserError

# cuBLAS is deterministic only with a workspace of fixed size, which torch requires. A user's own
# choice is kept: :16:8 is deterministic too, and smaller.
CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
FLASH_ATTENTION = ("FLASH_ATTENTION_DETERMINISTIC", "1")  # transformers passes it to flash_attn
BATCH_INVARIANT = ("VLLM_BATCH_INVARIANT", "1")
NO_KERNEL = " does not have a deterministic implementation"  # in torch's errors, after a name


def secure(deterministic: bool) -> None:
    """Set this process's switches, before it computes anything on a GPU.

    TF32 and other choices of precision are unchanged: they are deterministic. Child processes
    inherit only the environment, so each calls this function itself.
    """
    torch.use_deterministic_algorithms(deterministic)
    # Filling new memory helps programs that read uninitialised memory. This one does not, and
    # filling takes a tenth of a small run.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = False  # chooses kernels by their time
    if deterministic:
        os.environ.setdefault(*CUBLAS)
        os.environ.update([FLASH_ATTENTION])


def drawing_environment(device: int) -> dict[str, str]:
    """Variables for a process that only samples on this CUDA device: they make vLLM's results
    independent of the batch. vLLM then replaces torch's matrix products in the whole process, so a
    process that trains cannot use it. It needs compute capability 8.0 or higher.
    """
    wanted = torch.are_deterministic_algorithms_enabled()
    if not wanted or torch.cuda.get_device_capability(device) < (8, 0):
        return {}
    name, value = BATCH_INVARIANT
    return {name: os.environ.get(name, value)}


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn torch's error about an operation without a deterministic kernel into a UserError."""
    try:
        yield
    except RuntimeError as error:
        operation, found, _ = str(error).partition(NO_KERNEL)
        if not found:
            raise
        raise UserError(
            f"deterministic=true: {operation}{NO_KERNEL} on this device; use deterministic=false, "
            "which gives up bit-identical resumes"
        ) from error
