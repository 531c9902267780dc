"""What these tests lock: the notebooks run, and the outputs kept in them are fit to be read.

1. Each notebook runs from its first cell to its last, in an empty folder, and warns of nothing.
2. The kept outputs come from one run of the kept code, whole and in order.
3. They are small, have pictures, and hold no absolute path and no name of a machine.
4. What is computed without a run comes out as it is kept; runs are as small as is asked for.

`python tests/test_notebooks.py` runs the notebooks at their own size and keeps what comes out.
"""

import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from conftest import SMALL
from language_models import tiny_llama
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
LONG = {"own_algorithm", "tour", "language_model"}  # these train
# In place of those of SMALL: a few steps of a tiny language model.
LANGUAGE_MODEL = (
    "threads=1", "model.warm_start.steps=1", "steps=4", "sync.interval=2", "batch_size=2",
    "group_size=2", "eval_every=2", "eval_problems=2", "dataset.eval_problems=4",
    "dataset.train_problems=16", "dataset.max_prompt_tokens=400", "dataset.max_response_tokens=12",
)  # fmt: skip
MOST_BYTES = 200_000
MINUTES = 15  # for one cell
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+|\b[A-Z]:\\")
# Without what an execution adds about the machine.
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}


def execute(path: Path, folder: Path, **environment: str) -> NotebookNode:
    """The notebook with the outputs of a run in `folder`. Raises CellExecutionError."""
    import matplotlib.font_manager  # noqa: F401  the first import on a machine warns if it is slow

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=60 * MINUTES,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    with tempfile.TemporaryDirectory() as profile:  # what a user has set up changes nothing
        client.execute(env={**os.environ, "IPYTHONDIR": profile, **environment})
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def outputs(notebook: NotebookNode) -> list[list[NotebookNode]]:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: NotebookNode) -> list[list[list[str]]]:
    """For each output of each cell, the stream it went to or the formats it has."""
    return [
        [[out.name] if out.output_type == "stream" else sorted(out.get("data", {})) for out in cell]
        for cell in outputs(notebook)
    ]


def text(notebook: NotebookNode) -> str:
    """All that was printed."""
    return "".join(
        out.text for cell in outputs(notebook) for out in cell if out.output_type == "stream"
    )


def strings(value: object) -> Iterator[str]:
    """All text in a notebook but its pictures."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            if key != "image/png":
                yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path, id=path.stem, marks=[pytest.mark.long] if path.stem in LONG else [])
        for path in NOTEBOOKS
    ],
)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def kept(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def executed(path: Path, tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The notebook run with tiny experiments, where no earlier run can be found."""
    folder = tmp_path_factory.mktemp("checkout") / "notebooks"
    folder.mkdir()
    smaller = SMALL
    if path.stem == "language_model":
        made = tiny_llama(tmp_path_factory.mktemp("model"))
        smaller = (*LANGUAGE_MODEL, f"model.path={made}")
    return execute(path, folder, REC_NOTEBOOK_OVERRIDES=" ".join(smaller))


def test_runs_and_gives_the_kinds_of_outputs_that_are_kept(executed, kept):
    assert kinds(executed) == kinds(kept)


def test_warns_of_nothing(executed):
    assert [
        out.text for cell in outputs(executed) for out in cell if out.get("name") == "stderr"
    ] == []


def test_kept_outputs_come_from_one_run_in_order(kept):
    counts = [cell.execution_count for cell in kept.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_kept_outputs_are_small(path):
    assert path.stat().st_size < MOST_BYTES


def test_kept_outputs_show_pictures(kept):
    assert any("image/png" in out for cell in kinds(kept) for out in cell)


def test_kept_outputs_name_no_place_and_no_machine(kept):
    everything = "\n".join(strings(dict(kept)))
    assert ABSOLUTE_PATH.findall(everything) == []
    assert socket.gethostname() not in everything


def test_prints_what_it_should(path, executed, kept):
    expected = {
        "bandit_and_masks": text(kept),
        "own_algorithm": "9 done, 0 failed",
        "one_claim": text(kept),  # from the archive in docs/results
        "figures": "2 runs done, 0 partial, 0 missing",  # of its own sweep
        "tour": "over 3 steps",
        "language_model": "for 4 steps and the evaluations",
    }
    assert expected[path.stem] in text(executed)


if __name__ == "__main__":
    for each in NOTEBOOKS:  # a cache beside the runs: the outputs are those of the first run ever
        ran = execute(each, each.parent, REC_NOTEBOOK_OVERRIDES="", REC_EXPERIMENTS_CACHE="cache")
        nbformat.write(ran, each)
        print(each.name, each.stat().st_size, "bytes")
