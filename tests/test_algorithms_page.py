"""docs/algorithms.md is what the configurations say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_the_one_that_is_made():
    spec = importlib.util.spec_from_file_location("algorithms", DOCS / "algorithms.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (DOCS / "algorithms.md").read_text() == script.page(), "run make pages"
