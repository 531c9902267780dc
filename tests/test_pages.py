"""Generated pages, intervals of the README and the early warning are those of the archives."""

import re
from pathlib import Path

import algorithms
import early_warning
import forecasts
import language_model
import metrics
import published
import pytest
import staleness

from rec_experiments.analysis.alarms import EARLY_WARNING
from rec_experiments.cli.main import run_command

DOCS = Path(__file__).parents[1] / "docs"
INTERVAL = re.compile(r"[\d.]+ \[[\d.]+, [\d.]+\]")


@pytest.mark.parametrize(
    "script",
    [algorithms, forecasts, language_model, metrics, published, staleness],
    ids=lambda script: script.__name__,
)
def test_a_page_is_what_its_script_writes(script):
    assert (DOCS / f"{script.__name__}.md").read_text() == script.page(), "run `make pages`"


def test_the_claims_are_judged_on_the_archives(tmp_path):
    archives = ",".join(map(str, sorted((DOCS / "results").glob("*.csv.xz"))))
    run_command("claims", "--runs", archives, "--out", str(tmp_path / "claims.md"))
    assert (DOCS / "claims.md").read_text() == (tmp_path / "claims.md").read_text()


def test_an_interval_of_the_readme_stands_on_a_generated_page():
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    pages = " ".join((DOCS / f"{name}.md").read_text() for name in ("staleness", "language_model"))
    assert len(found := INTERVAL.findall(readme)) >= 3
    assert set(found) <= set(INTERVAL.findall(pages))


def test_the_early_warning_is_fitted_to_the_archives():
    found = early_warning.stale_runs()
    fitted = early_warning.fit(found[found["fitted"]])
    assert tuple(fitted) == pytest.approx(tuple(EARLY_WARNING), abs=0.01)
