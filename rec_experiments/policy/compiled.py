"""Decoder layers turned into kernels of their own by torch.compile, where training runs."""

import torch
from torch import nn

from rec_experiments.distributed import decoder_layers
from rec_experiments.errors import UserError, first_line


def compile_layers(model: nn.Module) -> None:
    """Compile the forward pass of each decoder layer, in place, so that weights keep their names.

    Lengths stay open, and layers that are alike share one kernel. What surrounds a layer's own
    forward runs as ever: checkpointing of activations, and the hooks by which ranks gather weights.
    A copy of the model would run the layers of the original, so copy it before. Raises UserError
    where nothing can be compiled.
    """
    device = next(model.parameters()).device
    try:
        torch.compile(_probe)(torch.ones(2, device=device))
    except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
        raise UserError(
            f"model.compile_layers=true: nothing can be compiled here ({first_line(error)}); a C++ "
            "compiler is needed, or compile_layers=false"
        ) from error
    for layer in decoder_layers(model):
        layer.forward = torch.compile(layer.forward, dynamic=True)


def _probe(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1
