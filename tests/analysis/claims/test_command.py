"""The command: the card, the details, the files, and the claims in a figure's files."""

import shlex

import numpy as np
import pandas
import pytest

from rec_experiments import sweeps
from rec_experiments.analysis import claims
from rec_experiments.cli.main import run_command

ON_POLICY, INTERVAL = "on-policy", "sync_interval = 20"
REINFORCE, RED_WEIGHT, RED_DROP = "REINFORCE", "RED-Weight", "RED-Drop"
LEARNS, COLLAPSES = (0.3, 0.5, 0.6, 0.6, 0.6), (0.3, 0.4, 0.1, 0.0, 0.0)
DRAWN, JUDGED = [0, 1, 2], list(range(10, 20))
STEPS = np.arange(0, 151, 15)  # of the evaluations at scale mini


@pytest.fixture(scope="module")
def fig5(tmp_path_factory):
    """An archive of Figure 5 at scale mini and its own rate; no other figure has a run.

    On-policy all arms learn alike; on stale data REINFORCE collapses.
    """
    lines = ["scale=mini", f"seed={','.join(map(str, [*DRAWN, *JUDGED]))}"]
    figure = sweeps.load_figure("fig5", lines)
    parts = []
    for number, point in enumerate(sweeps.points(figure, lines)):
        bad = (point.label, point.heading) == (REINFORCE, INTERVAL)
        heights = COLLAPSES if bad else LEARNS
        seed = int(point.lines["seed"].partition("=")[2])
        accuracy = np.interp(STEPS, np.linspace(0, 150, 5), heights) + 0.001 * seed
        about = {"run": f"run{number}", "overrides": shlex.join(point.overrides), "release": 12}
        parts.append(pandas.DataFrame({**about, "step": STEPS, "eval/accuracy": accuracy}))
    file = tmp_path_factory.mktemp("runs") / "runs.csv.xz"
    pandas.concat(parts).to_csv(file, index=False)
    return f"--runs={file}"


def test_the_card_comes_first_and_has_a_column_for_each_rate(fig5, capsys):
    run_command("claims", "scale=mini", fig5)
    first, second, third, _, head, *lines = capsys.readouterr().out.splitlines()
    assert first == "mini at 3.0e-05: 4 of 19 claims supported, 15 not run; on 10 seeds"
    none = "0 of 19 claims supported, 19 not run"
    assert (second, third) == (f"mini at 1.0e-04: {none}", f"mini at 4.8e-05: {none}")
    assert head.split("  ")[0] == "claim"
    assert lines[0].split() == ["on-policy-parity-red-drop", "supported", *["not", "run"] * 2]
    assert lines.index("") == 4  # claims without any run are counted above, and not listed


def test_details_are_below_the_card(fig5, capsys):
    run_command("claims", "--details=data-weighting-holds-red-drop", "scale=mini", fig5)
    card, _, details = capsys.readouterr().out.partition("\n\nOn stale data RED-Drop")
    assert "on-policy-parity-red-drop" in card
    assert "on-policy-parity-red-drop" not in details
    assert "“Figure 5 presents GSM8k results […]" in details
    assert "supported at mini at 3.0e-05, 10 seeds" in details
    assert "expected: not lower, δ = 0.06; 10 seeds" in " ".join(details.split())
    assert "Runs of release 12." in details


def test_the_page_has_a_column_for_each_setting_with_runs_and_no_number_twice(fig5, tmp_path):
    run_command("claims", f"--out={tmp_path}/claims.md", "scale=mini,paper", fig5)
    text = (tmp_path / "claims.md").read_text()
    assert "| claim | endpoint | mini at 3.0e-05 |" in text
    [parity] = [
        each for each in text.splitlines() if each.startswith("| on-policy-parity-red-drop")
    ]
    assert parity.split(" | ")[1:] == [
        "second half, RED-Drop − REINFORCE (fig5, on-policy): alike",
        "supported: 0 |",
    ]  # fmt: skip
    assert text.count("δ = 0.06") == 1


def test_typed_seeds_and_rates_replace_those_of_the_scale(fig5, capsys):
    run_command("claims", "scale=mini", "seed=0,1", fig5)
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("mini at 3.0e-05: ")
    assert first.endswith("15 not run; on 2 seeds")


def test_every_miniature_is_judged_where_no_scale_is_named(monkeypatch, tmp_path):
    asked = []

    def judged(which, setting, runs, overrides):
        asked.append((setting.title, overrides))
        return []

    monkeypatch.setattr(claims, "judged", judged)
    with pytest.raises(SystemExit):
        run_command("claims", "seed=0,1", f"--runs={tmp_path}")
    rates = {
        "mini": ("3.0e-05", "1.0e-04", "4.8e-05"),
        "mini_chain": ("3.0e-05", "4.8e-04", "6.0e-05"),
    }
    titles = [f"{scale} at {rate}" for scale in rates for rate in rates[scale]]
    assert asked == [(title, ["seed=0,1"]) for title in titles]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("optimizer.learning_rate=3e-5,1e-4", "learning_rate: claims are judged at one"),
        ("--out=/nowhere/claims.md", "/nowhere/claims.md: cannot be written"),
    ],
)
def test_bad_input_is_one_line(fig5, capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        run_command("claims", "scale=mini", words, fig5)
    error = capsys.readouterr().err
    assert (caught.value.code, error.count("\n")) == (2, 1)
    assert message in error


def test_the_commands_make_the_runs_of_both_rates(capsys):
    run_command("claims", "--commands", "scale=mini")
    lines = capsys.readouterr().out.splitlines()
    seeds = ",".join(map(str, JUDGED))
    start = "python -m rec_experiments -m sweep=fig3 scale=mini"
    assert lines[0] == f"{start} seed={seeds}"
    assert f"{start} seed={seeds} optimizer.learning_rate=0.0001" in lines
    assert sum("sweep=fig10 " in line for line in lines) == 1  # its arms set rates themselves
