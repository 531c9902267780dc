"""The pictures of maps: what is drawn in which cell, from fabricated runs."""

import warnings

import numpy as np
import pytest
from fabricated import figure_of

from rec_experiments.analysis.figures import maps
from rec_experiments.common.errors import UserError

RATES = [1e-5, 2e-5, 4e-5, 8e-5]


def run_of(arm, rate, interval, seed, gain, column=""):
    low = "null" if rate == RATES[0] else "0.2"
    overrides = f"steps=40 sync.interval={interval} optimizer.learning_rate={rate} clip.low={low}"
    rows = [{"step": step, "eval/accuracy": 0.3 + (gain if step else 0)} for step in (0, 20, 40)]
    return arm, column, seed, "done", rows, f"algo=rec_oneside_nois sync=on_policy {overrides}"


def map_of(runs, picture, keys):
    about = {"title": "Fabricated", "caption": "Made up.", "picture": picture, "map": keys}
    return figure_of(runs, **about, name="fabricated")


def stability_of(runs):
    keys = {"on_policy": {"GRPO": "REINFORCE"}, "star": {"age": 19, "rate": 2e-5}}
    return map_of(runs, "stability", keys)


@pytest.fixture
def runs():
    """REINFORCE fails above 3e-5 on stale data; GRPO above 6e-5 and has no on-policy runs."""
    edge = {"REINFORCE": 3e-5, "GRPO": 6e-5}
    return [
        run_of(arm, rate, interval, seed, 0.1 if interval == 1 or rate < edge[arm] else -0.1)
        for arm in edge
        for rate in RATES
        for interval in (1, 20)
        for seed in (0, 1)
        if (arm, interval) != ("GRPO", 1)
    ]


def test_stability_map_colours_the_share_kept(runs):
    drawing = maps.draw_stability(stability_of(runs))
    panels = {axes.get_title(): axes for axes in drawing.figure.axes if axes.images}
    assert list(panels) == ["REINFORCE", "GRPO"]
    shares = np.asarray(panels["REINFORCE"].images[0].get_array())
    assert shares == pytest.approx(np.array([[1, 1, 1, 1], [1, 1, -1, -1]]))
    assert np.asarray(panels["GRPO"].images[0].get_array())[1] == pytest.approx([1, 1, 1, -1])


def test_stability_table_has_the_edges(runs):
    drawing = maps.draw_stability(stability_of(runs))
    edges = drawing.statistics.set_index(["arm", "age"]).to_dict("index")
    assert edges["REINFORCE", 19]["rate"] == pytest.approx(2e-5 * 2**0.5)
    assert edges["GRPO", 19]["multiple"] == pytest.approx(2)
    assert edges["GRPO", 0]["rate is"] == "≥"
    assert "2.83e-05 [2.83e-05, 2.83e-05]" in drawing.text


def is_stale(run):
    return "interval=20" in run[-1]


def hatched(drawing):
    return [patch for axes in drawing.figure.axes for patch in axes.patches if patch.get_hatch()]


def test_only_what_is_known_not_to_learn_on_policy_is_hatched(runs):
    """One row of cells: the panels still have room for their titles."""
    stale = stability_of([run for run in runs if is_stale(run)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing = maps.draw_stability(stale)
        drawing.figure.draw_without_rendering()
    assert not hatched(drawing)
    fails = [run_of("REINFORCE", rate, 1, seed, -0.1) for rate in RATES for seed in (0, 1)]
    fails += [run for run in runs if is_stale(run)]
    assert len(hatched(maps.draw_stability(stability_of(fails)))) == 16


def test_stability_map_needs_two_rates(runs):
    one = [run for run in runs if f"rate={RATES[0]} " in run[-1]]
    with pytest.raises(UserError, match="needs finished runs at two or more learning rates"):
        maps.draw_stability(stability_of(one))


def test_map_writes_the_mean_gain(runs):
    keys = {"panels": "arm", "across": "optimizer.learning_rate", "down": "clip.low"}
    drawing = maps.draw(map_of([run for run in runs if run[0] == "GRPO"], "map", keys))
    (axes,) = [axes for axes in drawing.figure.axes if axes.images]
    across, down = axes.get_xticklabels(), axes.get_yticklabels()
    assert [label.get_text() for label in down] == ["0.2", "none"]
    assert [label.get_text() for label in across] == ["1e-5", "2e-5", "4e-5", "8e-5"]
    assert [text.get_text() for text in axes.texts] == ["+0.10", "+0.10", "-0.10", "+0.10"]


def test_runs_of_one_seed_do_not_share_a_cell(runs):
    doubled = stability_of([*runs, runs[0]])
    with pytest.raises(UserError, match="several runs of one seed would share a cell"):
        maps.draw_stability(doubled)


def test_map_of_differences_is_paired_by_seed():
    """A second panel has no counterpart for one seed, so that seed is left out."""
    gains = {("none", 0): 0.1, ("none", 1): 0.3, ("TIS", 0): 0.25, ("TIS", 1): 0.4}
    runs = [
        run_of(arm, RATES[1], 20, seed, gain, column)
        for (arm, seed), gain in gains.items()
        for column in ("int8", "fp8")
        if (arm, seed, column) != ("none", 1, "fp8")
    ]
    keys = {"panels": "column", "across": "sync", "down": "arm", "against": "none"}
    drawing = maps.draw(map_of(runs, "map", keys))
    panels = {axes.get_title(): axes for axes in drawing.figure.axes if axes.images}
    shown = {name: [text.get_text() for text in axes.texts] for name, axes in panels.items()}
    assert shown == {"int8": ["+0.12"], "fp8": ["+0.15"]}
    cells = drawing.statistics.set_index(["column", "arm"]).to_dict("index")
    low, middle, high = (cells["int8", "TIS"][f"difference{end}"] for end in ("_low", "", "_high"))
    assert middle == pytest.approx(0.125)
    assert (low, high) == pytest.approx((0.125 - 0.3177, 0.125 + 0.3177), abs=1e-4)
    assert cells["fp8", "TIS"]["seeds"] == 1
    assert np.isnan(cells["fp8", "TIS"]["difference_low"])
