"""Attention of rows is torch's, in value and gradient, whichever way it is computed, and however
far apart the scores of a row are."""

import pytest
import torch

from rec_experiments.policy.tree import forward

HEADS, ROWS, POSITIONS, WIDTH, SCALING = 6, 3, 7, 4, 0.3


def in_rows(key_heads, size=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(key_heads)
    shape = (HEADS + 2 * key_heads, ROWS, POSITIONS, WIDTH)
    return size * torch.randn(shape, dtype=dtype, generator=generator)


def torchs(in_rows_HBLE, key_heads):
    split = in_rows_HBLE.split((HEADS, key_heads, key_heads))
    return torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in split), is_causal=True, scale=SCALING, enable_gqa=True
    ).transpose(0, 1)


@pytest.mark.parametrize("longest", [POSITIONS, POSITIONS - 1])  # plain products, and torch's own
@pytest.mark.parametrize("size", [1.0, 15.0, 400.0])  # scores of 1, of 200, and of 200,000
@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_it_is_torchs(monkeypatch, key_heads, size, longest):
    monkeypatch.setattr(forward, "LONGEST_SHORT", longest)
    given = in_rows(key_heads, size).requires_grad_()
    mixed, pull = forward.attend(given.detach(), HEADS, SCALING)
    theirs = torchs(given, key_heads)
    torch.testing.assert_close(mixed, theirs, rtol=1e-12, atol=1e-12)
    gradient = torch.randn_like(theirs)
    (expected,) = torch.autograd.grad(theirs, given, gradient)
    found = pull(gradient)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * expected.abs().max())


@pytest.mark.parametrize("height", [0.0, 60.0, 100.0, -100.0, 1e4])
def test_scores_of_any_height_weigh_the_same(height):
    """What all scores of a row have in common does not matter, in float32 too."""
    given = in_rows(HEADS, dtype=torch.float32)
    given[:HEADS, ..., 0] = 1.0
    expected, _ = forward.attend(given, HEADS, SCALING)
    given[HEADS : 2 * HEADS, ..., 0] += height / SCALING
    mixed, _ = forward.attend(given, HEADS, SCALING)
    assert mixed.isfinite().all()
    rounding = 1e-6 * max(1.0, abs(height))
    torch.testing.assert_close(mixed, expected, rtol=rounding, atol=rounding)


def test_a_row_far_below_the_others_keeps_its_digits():
    """One row's exponentials are all 0 in float32, another's all infinite."""
    given = in_rows(HEADS, dtype=torch.float32)
    given[:HEADS, ..., 0] = 1.0
    given[HEADS : 2 * HEADS, ..., 0] = torch.tensor([-1000.0, 0.0, 1000.0])[:, None] / SCALING
    mixed, pull = forward.attend(given, HEADS, SCALING)
    theirs = torchs(given.double(), HEADS)
    torch.testing.assert_close(mixed.double(), theirs, rtol=0, atol=1e-3)
    assert pull(torch.ones_like(mixed)).isfinite().all()


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("head", [0, HEADS])  # a query, and the key of the same head
def test_what_is_no_number_spreads_to_what_reads_it(head, number):
    given = in_rows(HEADS, dtype=torch.float32)
    expected, _ = forward.attend(given, HEADS, SCALING)
    given[head, 1, 2, 3] = number
    mixed, _ = forward.attend(given, HEADS, SCALING)
    reads = slice(2, 3) if head == 0 else slice(2, None)
    assert not mixed[0, 1, reads].isfinite().all()
    mixed[0, 1, reads] = expected[0, 1, reads]
    torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-6)
