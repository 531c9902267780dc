"""What is refused before a run starts."""

from types import SimpleNamespace

import pytest

from rec_experiments.errors import UserError
from rec_experiments.runs.checks import check_rope


def model(kind, original=4096, nested=False):
    rope = {"rope_type": kind, "original_max_position_embeddings": original}
    settings = {"full_attention": rope} if nested else rope
    return SimpleNamespace(rope_parameters=settings, max_position_embeddings=131072)


def limits(response):
    return SimpleNamespace(max_prompt_tokens=1024, max_response_tokens=response)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("nested", [False, True])
def test_rope_that_depends_on_the_batch_is_refused(kind, nested):
    check_rope(limits(3072), model(kind, nested=nested))
    with pytest.raises(UserError, match=f"exceed 4096 tokens.*{kind}"):
        check_rope(limits(3073), model(kind, nested=nested))


@pytest.mark.parametrize("kind", ["default", "yarn", "llama3"])
def test_static_rope_is_not_limited(kind):
    check_rope(limits(100_000), model(kind))
