"""The pages of docs/ that are made are what configurations and results say."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["algorithms", "staleness"])
def test_the_page_is_the_one_that_is_made(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (DOCS / f"{name}.md").read_text() == script.page(), "run make pages"


@pytest.mark.parametrize("name", ["algorithms", "staleness"])
def test_no_two_sections_of_a_page_have_one_heading(name):
    lines = (DOCS / f"{name}.md").read_text().splitlines()
    headings = [line for line in lines if line.startswith("##")]
    assert len(set(headings)) == len(headings)


def test_what_the_staleness_page_quotes_stands_in_its_tables():
    """Its prose is written by hand, its tables are made."""
    quoted = re.findall(r"\.\d{3} ± \.\d{3}", (DOCS / "staleness.template").read_text())
    tables = [line for line in (DOCS / "staleness.md").read_text().splitlines() if line[:1] == "|"]
    cells = re.findall(r"\.\d{3} ± \.\d{3}", "\n".join(tables).replace("± 0.", "± ."))
    assert len(quoted) > 20
    assert set(quoted) <= set(cells)
