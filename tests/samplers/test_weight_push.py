"""Weights on their way into vLLM, without vLLM.

1. Chunks keep the order, lose nothing, and hold no more than they may.
2. A chunk is told as vLLM's IPC engine reads it.
3. An engine that would not have its GPUs for itself is refused.
"""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rec_experiments.common.errors import UserError
from rec_experiments.samplers.vllm import check_devices, chunks, update_info


@given(st.lists(st.integers(1, 40)), st.integers(1, 200))
def test_chunks_hold_no_more_than_they_may(sizes, most):
    weights = [(str(n), torch.zeros(size)) for n, size in enumerate(sizes)]
    parts = list(chunks(iter(weights), most))
    assert [name for part in parts for name, _ in part] == [name for name, _ in weights]
    assert all(len(part) == 1 or sum(w.nbytes for _, w in part) <= most for part in parts)
    for one, other in itertools.pairwise(parts):  # none could have been joined
        assert sum(w.nbytes for _, w in one) + other[0][1].nbytes > most


def test_a_chunk_as_it_is_told():
    part = [("a", torch.zeros(2, 3, dtype=torch.bfloat16)), ("b", torch.zeros(4))]
    copies = [[w, w.clone()] for _, w in part]
    told = update_info(part, copies, ["one", "two"], lambda w: (None, w.data_ptr()))
    assert told["names"] == ["a", "b"]
    assert told["dtype_names"] == ["bfloat16", "float32"]
    assert told["shapes"] == [[2, 3], [4]]
    assert told["ipc_handles"][1] == {
        "one": copies[1][0].data_ptr(), "two": copies[1][1].data_ptr()
    }  # fmt: skip


def test_engines_that_would_share_a_gpu_are_refused():
    check_devices(1, 1, ranks=1)
    check_devices(4, 4, ranks=1)
    with pytest.raises(UserError, match="ranks=8 every engine would start on the first GPU"):
        check_devices(1, 8, ranks=8)
    with pytest.raises(UserError, match="tensor_parallel_size=2: the process that samples sees 1"):
        check_devices(2, 1, ranks=1)
