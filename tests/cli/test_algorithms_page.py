"""The pages of docs/ that are made are what configurations and results say."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


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


def test_intervals_of_the_staleness_page_are_quoted_from_its_sets():
    """So that none is of other runs: prose is written by hand, and sets are made anew."""
    template = (DOCS / "staleness.template").read_text()
    assert not re.findall(r"\.\d{3} ± \.\d{3}", template)
    assert len(re.findall(r"\{\w+ \| [^{}]+ \| [^{}]+\}", template)) > 20
