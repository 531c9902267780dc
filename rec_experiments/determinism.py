"""What makes a device compute the same bits twice: the switches, and where they are set.

A kernel that adds in whatever order its threads finish rounds differently each time. torch has
another kernel for most of these, and raises an error for the others, if it is asked to. What is
promised with that, on which device, and what of it has been run, is in docs/operations.md.
"""

import contextlib
import os
from collections.abc import Iterator

import torch

from rec_experiments.errors import UserError

# cuBLAS sums in a fixed order only with a workspace of fixed size; torch refuses its products
# otherwise. :16:8 is as good and smaller, so a user's own choice stands.
CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
FLASH_ATTENTION = ("FLASH_ATTENTION_DETERMINISTIC", "1")  # transformers passes it to flash_attn
BATCH_INVARIANT = ("VLLM_BATCH_INVARIANT", "1")
NO_KERNEL = " does not have a deterministic implementation"  # in torch's errors, after a name


def secure(deterministic: bool) -> None:
    """Set this process's switches, before it computes anything on a GPU.

    TF32 and the other choices of precision stay as they are: they change bits, but always in the
    same way. Processes that this one starts inherit the environment alone, so they call it too.
    """
    torch.use_deterministic_algorithms(deterministic)
    # torch would also fill all memory that it hands out, for programs that read what nobody wrote.
    # This is none, and the filling takes a tenth of a small run.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = False  # chooses kernels by their time
    if deterministic:
        os.environ.setdefault(*CUBLAS)
        os.environ.update([FLASH_ATTENTION])


def drawing_environment(device: int) -> dict[str, str]:
    """For a process that only draws, on this CUDA device: vLLM computes a sequence in the same way
    whatever else is in the batch. Its own matrix products replace torch's in that process, so it is
    nothing for one that trains. vLLM has them for compute capability 8.0 and above.
    """
    wanted = torch.are_deterministic_algorithms_enabled()
    if not wanted or torch.cuda.get_device_capability(device) < (8, 0):
        return {}
    name, value = BATCH_INVARIANT
    return {name: os.environ.get(name, value)}


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Within, torch's refusal of an operation is a UserError that names the way out."""
    try:
        yield
    except RuntimeError as error:
        operation, found, _ = str(error).partition(NO_KERNEL)
        if not found:
            raise
        raise UserError(
            f"deterministic=true: {operation}{NO_KERNEL} on this device; use deterministic=false, "
            "and give up bit-identical resumes"
        ) from error
