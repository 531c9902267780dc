"""Switches for deterministic kernels.

A kernel that sums in the order in which its threads finish rounds differently each time. torch can
replace most of these kernels, and raises an error for the others. docs/operations.md says what is
guaranteed on which device.
"""

import contextlib
import os
from collections.abc import Iterator

import torch

from rec_experiments.common.errors import UserError

# cuBLAS is deterministic only with a workspace of fixed size, which torch requires. A user's own
# choice is kept: :16:8 is deterministic too, and smaller.
CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
FLASH_ATTENTION = ("FLASH_ATTENTION_DETERMINISTIC", "1")  # transformers passes it to flash_attn
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
