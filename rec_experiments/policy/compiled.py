"""torch.compile of the trainer's decoder layers."""

import torch
from torch import nn

from rec_experiments.common.distributed import decoder_layers
from rec_experiments.common.errors import UserError, first_line


def compile_layers(model: nn.Module) -> None:
    """Compile the forward pass of each decoder layer in place; weights keep their names.

    Lengths are dynamic, and layers that are alike share one kernel. Activation checkpointing and
    FSDP's hooks surround the compiled forward as before. Copy the model before compiling: a later
    copy would run the layers of the original. Raises UserError if nothing can be compiled here.
    """
    device = next(model.parameters()).device
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(2, device=device))
    except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
        raise UserError(
            f"model.compile_layers=true: cannot compile here ({first_line(error)}); install a C++ "
            "compiler, or use compile_layers=false"
        ) from error
    for layer in decoder_layers(model):
        layer.forward = torch.compile(layer.forward, dynamic=True)
