"""The page of algorithms says what the configurations say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_the_one_that_is_made():
    spec = importlib.util.spec_from_file_location("algorithms", DOCS / "algorithms.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (DOCS / "algorithms.md").read_text()
    assert page == script.page(), "run make pages"
    headings = [line for line in page.splitlines() if line.startswith("##")]
    assert len(set(headings)) == len(headings)
