"""A deliberate difference between sampler and trainer, of a known size.

Real inference engines compute the policy's probabilities differently from the trainer: in another
precision, with quantised weights, or with other kernels. The native sampler with these
perturbations of its weights or logits reproduces each cause separately, deterministically, and on a
CPU.
"""

import zlib

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.common.rng import LOGITS, MISMATCH, generator

LARGEST = {"int8": 127.0, "fp8": 448.0}  # of the format's values; fp8 is E4M3


def perturb(model: PreTrainedModel, quantization: str | None, noise: float, seed: int) -> None:
    """Perturb every matrix in place, except the token embeddings, which engines do not quantise
    either (nor an output layer that is tied to them). The result depends on nothing but the
    weights, so that a resumed or an overlapped run samples the same responses.

    quantization: int8, fp8 or None. noise, seed: as in `noisy`.
    """
    embeddings = model.get_input_embeddings().weight
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and weight is not embeddings:
            perturbed_XX = weight.detach().float()
            if quantization:
                perturbed_XX = quantized(perturbed_XX, quantization)
            if noise:
                perturbed_XX = noisy(perturbed_XX, noise, seed, name)
            weight.data.copy_(perturbed_XX)


def quantized(weight_XX: Tensor, form: str) -> Tensor:
    """The weight rounded to int8 or fp8 (E4M3), with one scale per row.

    Each row's largest magnitude becomes the largest value of the format, as in engines that
    quantise weights alone.
    """
    scale_X1 = weight_XX.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / LARGEST[form]
    scaled_XX = weight_XX / scale_X1
    if form == "int8":
        return scaled_XX.round() * scale_X1
    return scaled_XX.to(torch.float8_e4m3fn).float() * scale_X1


def noisy(weight_XX: Tensor, size: float, seed: int, name: str) -> Tensor:
    """The weight plus normal noise, whose standard deviation is `size` times the root mean square
    of the weight. The noise is a function of seed and name, the same for every version."""
    normal = generator(seed, MISMATCH, zlib.crc32(name.encode())).standard_normal(weight_XX.shape)
    noise_XX = torch.from_numpy(normal).to(weight_XX)
    return weight_XX + size * weight_XX.square().mean().sqrt() * noise_XX


def logit_noise(written: list[list[int]], vocabulary: int, size: float, seed: int) -> Tensor:
    """Normal noise of standard deviation `size` for the logits after each of U sequences, U x V,
    float32. It is a function of the seed and of a sequence's tokens, so responses that share a
    prefix share its noise, and it is the same for every version."""
    names = [zlib.crc32(np.array(tokens, np.int64).tobytes()) for tokens in written]
    normal = [generator(seed, LOGITS, name).standard_normal(vocabulary) for name in names]
    return size * torch.from_numpy(np.array(normal)).float()
