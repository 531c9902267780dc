"""The page in a real browser.

1. The value under the pointer and the numbers of the lines are those of the rows.
2. Arms, columns and seeds can be switched; means and intervals are over the chosen ones.
3. Any metric can be drawn over any other, by step, tokens and seconds.
4. A point leads to its run's folder, its differences from most runs, and its responses.
5. The table of runs filters and sorts; the pickers choose responses.
6. No text of a run is markup or script; the page's policy refuses foreign scripts.
"""

import csv
import io
import itertools
import json
import re
import shutil
from pathlib import Path

import fabricated
import numpy as np
import pytest
from conftest import resolve
from fabricated import sample, write_lines
from scipy import stats

from rec_experiments.analysis.report import contents, page
from rec_experiments.analysis.report.page import RUN_HEAD

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra browser)")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium on the PATH")

ARMS = {"GRPO": "algo=grpo", "REINFORCE": "algo=reinforce"}
COLUMNS = {"offline": "sync=offline", "on-policy": "sync=on_policy"}
SEEDS = (0, 1, 2)
SCRIPT = '"><script>window.hostile = 1</script><img src=x onerror="window.hostile = 2">'


def rows_of(place: int, seed: int) -> list[dict]:
    """Every number identifies its run and step."""
    rows: list[dict] = [{"step": 0, "eval/accuracy": 0.1 * place + 0.01 * seed}]
    for step in range(1, 13):
        row = {"step": step, "tokens/response": 10 + seed, "time/train": 0.5, "train/loss": -0.1}
        row["train/grad_norm"] = step * (1 + seed) / 4
        if step % 4 == 0:
            row["eval/accuracy"] = 0.1 * place + 0.01 * seed + step / 40
        if step % 5 == 0:
            row["train/kl"] = step / 1000
        rows.append(row)
    return rows


def write_run(path: Path, config: dict, rows: list[dict], word: str = "x") -> None:
    fabricated.write_run(path, rows, config=config, command=[word], reason=word)
    samples = [sample(step, f"{path.name} at {step}", word, word) for step in (0, 4, 12)]
    write_lines(path / "samples.jsonl", samples)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for place, (arm, column) in enumerate(itertools.product(ARMS, COLUMNS)):
        config = resolve(ARMS[arm], COLUMNS[column])
        for seed in SEEDS:
            path = folder / "runs" / f"{arm} {column} {seed}"
            write_run(path, {**config, "seed": seed}, rows_of(place, seed))
    found = contents.gather([], [folder / "runs"], [], every_run=True)
    (folder / "page.html").write_text(page.render(found, "today", folder))
    return folder


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """A function that opens a file, with the console messages and requests of its page."""
    said: list[str] = []
    asked: list[str] = []
    tabs = []

    def open_file(file: Path):
        tab = browser.new_page(viewport={"width": 1300, "height": 900})
        tabs.append(tab)
        tab.set_default_timeout(300_000)
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(file.as_uri())
        tab.wait_for_selector("#explore-table table", state="attached")
        return tab

    open_file.said, open_file.asked = said, asked
    yield open_file
    for tab in tabs:
        tab.close()


def lines(tab) -> dict[tuple[str, str], list[str]]:
    """The last points, (column, line) to step, x, y, interval, of the finished drawing."""
    tab.evaluate("async () => { while (drawn < draws) await new Promise(requestAnimationFrame); }")
    cells = tab.eval_on_selector_all(
        "#explore-table tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
    )
    return {(column, line): rest for column, line, *rest in cells}


def choose(tab, name: str, value: str) -> None:
    tab.select_option(f"#explore-{name}", value)


def switch(tab, group: str, value: str) -> None:
    tab.click(f'#explore-{group} label:has-text("{value}") input')


def test_lines_are_the_rows(opened, folder):
    tab = opened(folder / "page.html")
    found = lines(tab)
    assert len(found) == 4 * (len(SEEDS) + 1)
    for place, (arm, column) in enumerate(itertools.product(ARMS, COLUMNS)):
        ends = [rows_of(place, seed)[-1]["eval/accuracy"] for seed in SEEDS]
        for seed, end in zip(SEEDS, ends, strict=True):
            step, x, y, interval = found[column, f"{arm}, seed {seed}"]
            assert (step, x, float(y), interval) == ("12", "12", pytest.approx(end, 1e-3), "")
        _, _, y, interval = found[column, f"{arm}, mean of 3 runs"]
        assert float(y) == pytest.approx(np.mean(ends), 1e-3)
        low, high = stats.t.interval(0.95, 2, np.mean(ends), stats.sem(ends))
        assert [float(end) for end in interval.split(" to ")] == pytest.approx([low, high], 1e-3)
    assert opened.said == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.asked)
    assert not tab.evaluate("document.documentElement.scrollWidth > window.innerWidth")


def test_the_value_under_the_pointer(opened, folder):
    tab = opened(folder / "page.html")
    lines(tab)
    picture = tab.locator("#explore-panels canvas:nth-child(2)").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    seen = set()
    for across, down in itertools.product(range(8, 60, 4), range(5, 90, 5)):
        tab.mouse.move(
            box["x"] + box["width"] * across / 100, box["y"] + box["height"] * down / 100
        )
        tip = tab.locator("#explore-panels .tip").first
        if tip.is_visible():
            seen.add(tuple(tip.locator("div").all_text_contents()))
    assert len(seen) > 10
    for name, value, step in seen:
        arm, which = name.split(", ")
        place = 2 * list(ARMS).index(arm)  # the first picture is of the first column
        number = int(step.removeprefix("step "))
        values = [rows_of(place, seed)[number]["eval/accuracy"] for seed in SEEDS]
        expected = np.mean(values) if which.startswith("mean") else values[int(which[-1])]
        shown = float(re.match(r"eval/accuracy (\S+)", value)[1])
        assert shown == pytest.approx(expected, abs=1e-4)
        assert ("[" in value) == which.startswith("mean")


def test_switches(opened, folder):
    tab = opened(folder / "page.html")
    switch(tab, "arms", "REINFORCE")
    assert {line.split(",")[0] for _, line in lines(tab)} == {"GRPO"}
    switch(tab, "columns", "offline")
    assert {column for column, _ in lines(tab)} == {"on-policy"}
    switch(tab, "seeds", "1")
    found = lines(tab)
    assert {line for _, line in found} == {"GRPO, seed 0", "GRPO, seed 2", "GRPO, mean of 2 runs"}
    ends = [rows_of(1, seed)[-1]["eval/accuracy"] for seed in (0, 2)]
    assert float(found["on-policy", "GRPO, mean of 2 runs"][2]) == pytest.approx(
        np.mean(ends), 1e-3
    )
    tab.uncheck("#explore-runs")
    assert {line for _, line in lines(tab)} == {"GRPO, mean of 2 runs"}
    tab.check("#explore-runs")
    tab.uncheck("#explore-means")
    assert {line for _, line in lines(tab)} == {"GRPO, seed 0", "GRPO, seed 2"}
    tab.click("#explore-seeds button")  # some are off: all
    assert len(lines(tab)) == 3
    tab.click("#explore-seeds button")  # all are on: none
    assert lines(tab) == {}
    assert opened.said == []


def test_any_metric_against_any_other(opened, folder):
    tab = opened(folder / "page.html")
    choose(tab, "x", "tokens")
    assert lines(tab)["offline", "GRPO, seed 1"][1] == str(12 * 11)
    assert lines(tab)["offline", "GRPO, mean of 3 runs"][1] == str(12 * 11)
    choose(tab, "x", "seconds")
    assert lines(tab)["offline", "GRPO, seed 1"][1] == "6"
    choose(tab, "y", "train/grad_norm")
    choose(tab, "x", "train/kl")  # at steps 5 and 10, and as it was last measured
    assert lines(tab)["offline", "GRPO, seed 1"] == ["12", "0.01", "6", ""]
    tab.check("#explore-log-x")
    tab.check("#explore-log-y")
    assert lines(tab)["offline", "GRPO, seed 1"] == ["12", "0.01", "6", ""]
    choose(tab, "y", "train/loss")  # negative: no place on a logarithmic axis
    assert len(lines(tab)) == 16
    assert opened.said == []


def test_a_region_is_zoomed_into_and_a_link_keeps_the_view(opened, folder):
    tab = opened(folder / "page.html")
    lines(tab)
    choose(tab, "smooth", "5")
    # Evaluations 4 steps apart: the last 5 steps have those at 8 and 12.
    assert lines(tab)["offline", "GRPO, seed 0"][2] == str((8 + 12) / 2 / 40)
    switch(tab, "arms", "REINFORCE")
    tab.fill("#filter-text", "offline")
    lines(tab)
    picture = tab.locator("#explore-panels canvas:nth-child(2)").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.2 * box["height"])
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.6 * box["height"], steps=3)
    tab.mouse.up()
    shown = lines(tab)
    zoom = tab.evaluate("zoom")
    assert 0 < zoom[0][0] < zoom[0][1] < 12
    again = opened(folder / "page.html")
    again.goto(tab.url)
    again.reload()
    again.wait_for_selector("#explore-table table", state="attached")
    assert lines(again) == shown
    assert again.evaluate("zoom") == zoom
    assert again.inner_text("#run-count") == "6 of 12 runs"
    again.click("#explore-whole")
    assert again.evaluate("zoom") is None
    again.goto((folder / "page.html").as_uri() + "#view=%7B%22selects%22%3A%5B1%5D%7D")
    again.reload()
    again.wait_for_selector("#explore-table table", state="attached")
    assert len(lines(again)) == 16
    assert opened.said == []


def test_tables_and_curves_are_saved_as_csv(opened, folder):
    tab = opened(folder / "page.html")
    lines(tab)

    def saved(button: str) -> list[list[str]]:
        with tab.expect_download() as download:
            tab.click(button)
        return list(csv.reader(io.StringIO(Path(download.value.path()).read_text())))

    head, *rows = saved("#explore-csv")
    assert head == ["column", "line", "step", "eval/accuracy", "low", "high"]
    ends = [float(row[3]) for row in rows if row[1] == "GRPO, seed 1" and row[2] == "12"]
    assert ends == pytest.approx(
        [rows_of(0, 1)[12]["eval/accuracy"], rows_of(1, 1)[12]["eval/accuracy"]]
    )
    tab.fill("#filter-text", "on-policy")
    head, *rows = saved("#run-csv")
    assert head == list(RUN_HEAD)
    assert len(rows) == 6


def test_a_point_leads_to_its_run(opened, folder):
    tab = opened(folder / "page.html")
    lines(tab)
    picture = tab.locator("#explore-panels canvas:nth-child(2)").nth(1)
    picture.focus()
    picture.press("ArrowDown")
    picture.press("ArrowRight")
    tip = tab.locator("#explore-panels .tip").nth(1)
    name, _, step = tip.locator("div").all_text_contents()
    assert (name, step) == ("GRPO, seed 0", "step 4")
    picture.press("Enter")
    assert "GRPO · on-policy · seed 0, done, step 12/150" in tab.inner_text("#explore-run")
    link = tab.locator("#explore-run a")
    assert link.inner_text() == "run folder"
    rows = tab.locator("#explore-run tbody tr").all_inner_texts()
    tab.click("#explore-run button")
    assert "GRPO on-policy 0 at 12" in tab.inner_text("#sample-view")
    assert opened.said == []
    link.click()
    tab.wait_for_url(f"{(folder / 'runs').as_uri()}/**")
    assert "metrics.jsonl" in tab.content()
    assert all("seed" not in row for row in rows)


def test_runs_and_responses(opened, folder):
    tab = opened(folder / "page.html")

    def shown() -> list[str]:
        return tab.eval_on_selector_all(
            "#run-table tbody tr",
            "rows => rows.filter(r => !r.hidden).map(r => r.cells[0].dataset.sort)",
        )

    assert len(shown()) == 12
    tab.select_option("[data-key=algorithm]", "GRPO")
    tab.select_option("[data-key=seed]", "1")
    assert shown() == ["GRPO · offline · seed 1", "GRPO · on-policy · seed 1"]
    tab.fill("#filter-text", "grpo on-pol")
    assert shown() == ["GRPO · on-policy · seed 1"]
    assert tab.inner_text("#run-count") == "1 of 12 runs"
    for control in ("[data-key=algorithm]", "[data-key=seed]"):
        tab.select_option(control, "")
    tab.fill("#filter-text", "")
    for _ in range(2):  # descending
        tab.locator("#run-table th button").nth(RUN_HEAD.index("seed")).click()
    assert {name[-1] for name in shown()[:4]} == {"2"}
    pickers = tab.locator("#sample-pickers select")
    pickers.nth(1).select_option("REINFORCE")
    pickers.nth(3).select_option("seed 1")
    options = [picker.locator("option").all_text_contents() for picker in pickers.all()]
    seeds = [f"seed {seed}" for seed in SEEDS]
    assert options == [["no figure"], ["GRPO", "REINFORCE"], ["offline", "on-policy"], seeds]
    table = tab.locator("#sample-view table")
    assert table.locator("th[scope=col]").all_text_contents() == [
        "prompt", "step 0", "step 4", "step 12",
    ]  # fmt: skip
    assert "REINFORCE offline 1 at 12" in table.inner_text()
    assert opened.said == []


def test_no_text_of_a_run_is_executed(opened, tmp_path):
    config = resolve("algo=grpo", "sync=interval20")
    for seed in range(2):
        bad = json.loads(json.dumps(config)) | {"seed": f"{seed}{SCRIPT}", "steps": SCRIPT}
        bad["algo"]["name"] = bad["dataset"]["_target_"] = bad["clip"][SCRIPT] = SCRIPT
        rows = [row | {f"train/{SCRIPT}": row["step"], SCRIPT: SCRIPT} for row in rows_of(0, seed)]
        write_run(tmp_path / "runs" / f"{seed}{SCRIPT.replace('/', '')}", bad, rows, SCRIPT)
    found = contents.gather([], [tmp_path / "runs"], [], every_run=True)
    assert len(found.runs) == 2
    text = page.render(found, "today", tmp_path)
    (tmp_path / "page.html").write_text(text)
    tab = opened(tmp_path / "page.html")
    assert {name for _, name in lines(tab)} == {
        f"{SCRIPT} · {SCRIPT}, {which}"
        for which in ("mean of 2 runs", f"seed 0{SCRIPT}", f"seed 1{SCRIPT}")
    }  # fmt: skip
    choose(tab, "y", f"train/{SCRIPT}")
    assert len(lines(tab)) == 3
    picture = tab.locator("#explore-panels canvas:nth-child(2)").first
    picture.focus()
    picture.press("ArrowRight")
    picture.press("Enter")
    assert SCRIPT in tab.inner_text("#explore-run")
    tab.click("#explore-run button")
    assert tab.evaluate("window.hostile") is None
    assert tab.locator("img").count() == 0
    assert opened.said == []

    # The page's policy would refuse it, too.
    (tmp_path / "broken.html").write_text(text.replace("</h1>", f'</h1><p title="{SCRIPT}</p>'))
    tab = opened(tmp_path / "broken.html")
    assert tab.evaluate("window.hostile") is None
    assert sum("Content Security Policy" in line for line in opened.said) >= 2
