"""Causal attention over rows, with a written-out backward pass.

Short rows use plain matrix products; torch's kernel is faster only for long ones. The softmax does
not subtract the largest score first; the sums of exponentials show afterwards whether that was
necessary.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

# The most positions for plain products. Forward and backward take .5 of the time of torch's kernel
# at 40 positions, .9 at 64, 1.4 at 96.
LONGEST_SHORT = 64
# Each sum of exponentials must lie between these. An exponential that underflows, below 1e-38, is
# then negligible, and products with values overflow only if values exceed 1e18.
SMALLEST_SUM, LARGEST_SUM = 1e-20, 1e20

# From the gradient by the output to that by queries, keys and values, H x B x L x E.
Pull = Callable[[Tensor], Tensor]


def attend(in_rows_HBLE: Tensor, heads: int, scaling: float) -> tuple[Tensor, Pull]:
    """The output of attention over B rows, X x B x L x E with X query heads, and its backward pass.

    in_rows_HBLE: the heads of queries, then of keys, then of values.
    """
    key_heads = (len(in_rows_HBLE) - heads) // 2
    query_XBLE, key_JBLE, value_JBLE = in_rows_HBLE.split((heads, key_heads, key_heads))
    way = _by_products if in_rows_HBLE.shape[2] <= LONGEST_SHORT else _by_torch
    return way(query_XBLE, key_JBLE, value_JBLE, scaling)


def _by_torch(
    query_XBLE: Tensor, key_JBLE: Tensor, value_JBLE: Tensor, scaling: float
) -> tuple[Tensor, Pull]:
    with torch.enable_grad():  # a separate graph
        leaves = [x.detach().requires_grad_() for x in (query_XBLE, key_JBLE, value_JBLE)]
        query_BXLE, key_BJLE, value_BJLE = (x.transpose(0, 1) for x in leaves)
        mixed_BXLE = functional.scaled_dot_product_attention(
            query_BXLE, key_BJLE, value_BJLE,
            is_causal=True, scale=scaling, enable_gqa=len(query_XBLE) != len(key_JBLE),
        )  # fmt: skip
        mixed_XBLE = mixed_BXLE.transpose(0, 1)

    def pull(grad_XBLE: Tensor) -> Tensor:
        return torch.cat(torch.autograd.grad(mixed_XBLE, leaves, grad_XBLE))

    return mixed_XBLE.detach(), pull


def _by_products(
    query_XBLE: Tensor, key_JBLE: Tensor, value_JBLE: Tensor, scaling: float
) -> tuple[Tensor, Pull]:
    shape, times = query_XBLE.shape, len(query_XBLE) // len(key_JBLE)
    query_ZLE = (query_XBLE * scaling).flatten(0, 1)
    key_ZLE, value_ZLE = (_repeated(x, times).flatten(0, 1) for x in (key_JBLE, value_JBLE))
    weight_ZLL, total_ZL1 = _weights(query_ZLE, key_ZLE)
    mixed_ZLE = torch.bmm(weight_ZLL, value_ZLE).div_(total_ZL1)

    def pull(grad_XBLE: Tensor) -> Tensor:
        grad_ZLE = grad_XBLE.flatten(0, 1) / total_ZL1
        mean_ZL1 = (grad_ZLE * mixed_ZLE).sum(dim=-1, keepdim=True)
        score_grad_ZLL = torch.bmm(grad_ZLE, value_ZLE.mT).sub_(mean_ZL1).mul_(weight_ZLL)
        found_HBLE = grad_XBLE.new_empty(len(query_XBLE) + 2 * len(key_JBLE), *shape[1:])
        of_query, of_key, of_value = found_HBLE.split((shape[0], len(key_JBLE), len(key_JBLE)))
        _product(score_grad_ZLL, key_ZLE, 1, of_query)
        of_query *= scaling
        _product(score_grad_ZLL.mT, query_ZLE, times, of_key)
        _product(weight_ZLL.mT, grad_ZLE, times, of_value)
        return found_HBLE

    return mixed_ZLE.view(shape), pull


def _weights(query_ZLE: Tensor, key_ZLE: Tensor) -> tuple[Tensor, Tensor]:
    """Attention weights before normalisation, and the sums to divide by."""
    weight_ZLL = torch.bmm(query_ZLE, key_ZLE.mT).exp_().tril_()
    total_ZL1 = weight_ZLL.sum(dim=-1, keepdim=True)
    if _is_exact(total_ZL1):
        return weight_ZLL, total_ZL1
    later_LL = torch.ones_like(weight_ZLL[0], dtype=torch.bool).triu(1)
    score_ZLL = torch.bmm(query_ZLE, key_ZLE.mT).masked_fill_(later_LL, -torch.inf)
    return score_ZLL.softmax(dim=-1), torch.ones_like(total_ZL1)


def _is_exact(total_ZL1: Tensor) -> bool:
    least, most = torch.aminmax(total_ZL1)
    return bool(least > SMALLEST_SUM and most < LARGEST_SUM)


def _repeated(x_JBLE: Tensor, times: int) -> Tensor:
    """Repeat each key or value head for the query heads that share it."""
    return x_JBLE if times == 1 else x_JBLE.repeat_interleave(times, dim=0)


def _product(one_ZLL: Tensor, other_ZLE: Tensor, times: int, found_JBLE: Tensor) -> None:
    """Write the products to `found_JBLE`, summed over the query heads that share a key head."""
    if times == 1:
        torch.bmm(one_ZLL, other_ZLE, out=found_JBLE.view(other_ZLE.shape))
    else:
        product_ZLE = torch.bmm(one_ZLL, other_ZLE)
        found_JBLE.copy_(product_ZLE.view(-1, times, *found_JBLE.shape[1:]).sum(dim=1))
