"""The cache of the prefixes: whatever branches and ends, each prefix keeps its own tokens."""

from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from rec_experiments.samplers import prefixes as prefixes_module
from rec_experiments.samplers.prefixes import Memory, Prefixes, span_of

STEPS, HEADS, SIZE = 6, 2, 3


def keys_of(token_U: torch.Tensor) -> torch.Tensor:
    """Keys that tell their token, U x J x 1 x E; the values are their negatives."""
    return token_U.float()[:, None, None, None].expand(-1, HEADS, -1, SIZE)


@mock.patch.multiple(prefixes_module, SPAN=2, LEAST_SPAN=4)  # so that attention comes to read more
@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.data())
def test_every_prefix_keeps_its_tokens(prompt_lengths, data):
    """Against plain lists of tokens. Prompts are padded left. Memory of before is never read."""
    width, count = max(prompt_lengths), len(prompt_lengths)
    mask_UP = torch.tensor([[0] * (width - n) + [1] * n for n in prompt_lengths])
    cache = DynamicCache()
    prompt_UJPE = torch.cat([keys_of(torch.arange(count) + 100 * p) for p in range(width)], 2)
    cache.update(prompt_UJPE, -prompt_UJPE, 0)
    used = Memory()
    used.flat = {(0, kind): torch.full((12 * HEADS * 9 * SIZE,), torch.nan) for kind in (0, 1)}
    prefixes = Prefixes.after(cache, mask_UP, STEPS, used, 12)
    histories = [[n + 100 * p for p in range(width)] for n in range(count)]
    prompts, token = list(range(count)), 1000
    for _ in range(STEPS):
        again = st.lists(st.sampled_from(range(len(histories))), min_size=1, max_size=12)
        parents = sorted(data.draw(again))
        place_M = prefixes.branch(torch.tensor(parents)).tolist()
        assert sorted(place_M) == list(range(len(parents)))
        children: list[list[int]] = [[]] * len(parents)
        prompts_of = [0] * len(parents)
        for parent, place in zip(parents, place_M, strict=True):
            token += 1
            children[place], prompts_of[place] = [*histories[parent], token], prompts[parent]
        histories, prompts = children, prompts_of
        prefixes.append()
        new_U = torch.tensor([history[-1] for history in histories])
        cache.update(keys_of(new_U), -keys_of(new_U), 0)
        prefixes.position_U.add_(1)

        [layer] = cache.layers
        assert layer.keys[:, 0, :, 0].tolist() == histories
        assert torch.equal(layer.values, -layer.keys)
        for buffer_XJLE in layer.buffers:
            behind = buffer_XJLE[: prefixes.count, :, prefixes.length : span_of(prefixes.length)]
            assert not behind.count_nonzero()
        for place, prompt in enumerate(prompts):
            said = len(histories[place]) - width
            row = [*mask_UP[prompt].tolist(), *[1] * said]
            assert prefixes.mask_UL[place].tolist() == row
            assert int(prefixes.position_U[place]) == sum(row)
            assert bool((prefixes.bias_XL[place, len(row) :] < -1e20).all())
