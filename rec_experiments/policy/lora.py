"""LoRA (arXiv 2106.09685): a model's weights stay as they are, and a low-rank matrix that is added
to each chosen one is trained: W + α/r · B A, with B = 0 at the start.

Training sees the adapters beside the weights (peft). Everything that draws responses gets weights
merged in float32, so no sampler knows of adapters. vLLM rounds them to its own dtype.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rec_experiments.common.distributed import whole
from rec_experiments.common.errors import UserError, check_installed, first_line
from rec_experiments.policy.models import Lora

NAME = "default"  # peft's name for a model's only adapter


def adapted(model: PreTrainedModel, plan: Lora) -> PreTrainedModel:
    """A model with adapters, which shares all weights with `model` and freezes them.

    The adapters are of float32 or more, whatever the weights are. Raises UserError if peft is not
    installed, and for targets that are no linear layers of the decoder.
    """
    check_installed("adapter=lora", "peft")
    from peft import LoraConfig

    own = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    config = LoraConfig(
        r=plan.rank,
        lora_alpha=plan.alpha,
        target_modules=list(plan.targets),
        task_type="CAUSAL_LM",
    )
    allowed = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
    }
    if unknown := sorted(set(plan.targets) - allowed):
        raise UserError(
            f"model.lora.targets: {', '.join(unknown)}: no linear layer of the decoder of this "
            f"{model.config.model_type}; allowed: {', '.join(sorted(allowed)) or 'none'}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        try:
            own.add_adapter(config)
        except (ImportError, ValueError) as error:  # as for a peft that transformers does not take
            raise UserError(f"adapter=lora: {first_line(error)}") from error
    for weight in own.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.promote_types(weight.dtype, torch.float32))
    return own


def loaded(
    model: PreTrainedModel, plan: Lora, weights: Mapping[str, Tensor], merged: bool
) -> PreTrainedModel:
    """The model with these adapters, as `state_of` gives them; merged: put into its weights.

    Raises RuntimeError if they do not fit.
    """
    own = adapted(model, plan)
    own.load_state_dict({**own.state_dict(), **weights})
    if not merged:
        return own
    model.load_state_dict(WholeWeights(state_of(own), Base.of(own)))
    return model


def precise(model: PreTrainedModel) -> PreTrainedModel:
    """A model to merge adapters into, of float32 at least: bfloat16 rounds most of a small change
    away (after ten small steps the merged change had a cosine of .29 with the trained one)."""
    dtype = torch.promote_types(model.dtype, torch.float32)
    return model if model.dtype == dtype else copy.deepcopy(model).to(dtype)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes: all, or those of the adapters."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """The part of the live state that training changes: all of it, or the adapters."""
    state = dict(model.state_dict())
    return state if Base.of(model) is None else {n: state[n] for n in state if _is_adapter(n)}


@dataclass(frozen=True, slots=True)
class Base:
    """The frozen weights of a model with adapters, by the names of the model without. They may be
    split among the ranks."""

    weights: dict[str, Tensor]
    scaling: float

    @classmethod
    def of(cls, model: nn.Module) -> "Base | None":
        """None for a model without adapters."""
        configs = getattr(model, "peft_config", None)
        if configs is None:
            return None
        frozen = {
            name.replace(".base_layer.", "."): weight
            for name, weight in model.state_dict().items()
            if not _is_adapter(name)
        }
        return cls(frozen, configs[NAME].lora_alpha / configs[NAME].r)


class WholeWeights(Mapping[str, Tensor]):
    """The weights of a policy version, each gathered from the ranks and merged with its adapter, in
    the adapter's precision, when it is read, so that no more than one is held. Every rank must read
    the same ones in the same order.

    weights: as `state_of` gives them. base: of the same model.
    """

    def __init__(self, weights: Mapping[str, Tensor], base: Base | None) -> None:
        self._weights, self._base = weights, base
        self._names = weights if base is None else base.weights

    def __getitem__(self, name: str) -> Tensor:
        if self._base is None:
            return whole(self._weights[name])
        weight = whole(self._base.weights[name])
        layer, _, kind = name.rpartition(".")
        down, up = (f"{layer}.lora_{x}.{NAME}.weight" for x in "AB")
        if kind != "weight" or up not in self._weights:
            return weight
        change = whole(self._weights[up]) @ whole(self._weights[down]) * self._base.scaling
        return weight.to(change) + change

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _is_adapter(name: str) -> bool:
    return ".lora_" in name
