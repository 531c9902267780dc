"""The notebooks run from their first cell to their last, warn of nothing, and print what they say.

`python tests/test_notebooks.py` runs them at their own size and keeps the outputs.
"""

import os
import tempfile
from pathlib import Path

import nbformat
import pytest
from conftest import SMALL
from language_models import tiny_llama
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
# In place of those of SMALL: a few steps of a tiny language model.
LANGUAGE_MODEL = (
    "threads=1", "model.warm_start.steps=1", "steps=4", "sync.interval=2", "batch_size=2",
    "group_size=2", "eval_every=2", "eval_problems=2", "dataset.eval_problems=4",
    "dataset.train_problems=16", "dataset.max_prompt_tokens=400", "dataset.max_response_tokens=12",
)  # fmt: skip
MINUTES = 15  # for one cell
EXPECTED = {  # None: all that is kept, because nothing is trained
    "bandit_and_masks": None,
    "language_model": "for 4 steps and the evaluations",
    "one_claim": None,
    "own_algorithm": "9 done, 0 failed",
    "tour": "over 3 steps",
}
# Without what an execution adds about the machine.
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}


def execute(path: Path, folder: Path, **environment: str) -> NotebookNode:
    """Return the notebook with the outputs of a run in `folder`. Raises CellExecutionError."""
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


def printed(notebook: NotebookNode, stream: str) -> str:
    """Return all that was printed to a stream."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return "".join(out.text for out in outputs if out.get("name") == stream)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_says(path, tmp_path):
    folder = tmp_path / "checkout" / "notebooks"  # where no earlier run can be found
    folder.mkdir(parents=True)
    smaller = SMALL
    if path.stem == "language_model":
        smaller = (*LANGUAGE_MODEL, f"model.path={tiny_llama(tmp_path / 'model')}")
    ran = execute(path, folder, REC_NOTEBOOK_OVERRIDES=" ".join(smaller))
    assert printed(ran, "stderr") == ""
    kept = printed(nbformat.read(path, as_version=4), "stdout")
    assert (EXPECTED[path.stem] or kept) in printed(ran, "stdout")


if __name__ == "__main__":
    for each in NOTEBOOKS:  # a cache beside the runs: the outputs are those of the first run ever
        ran = execute(each, each.parent, REC_NOTEBOOK_OVERRIDES="", REC_EXPERIMENTS_CACHE="cache")
        nbformat.write(ran, each)
        print(each.name, each.stat().st_size, "bytes")
