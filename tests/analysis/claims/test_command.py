"""What these tests lock: the card, the details, the files, and the claims in a figure's files."""

import json
from types import SimpleNamespace

import pytest
from fabricated import write_run
from made_up import rows

from rec_experiments import sweeps
from rec_experiments.analysis.claims import paper_curves, tables
from rec_experiments.analysis.claims.definitions import (
    INTERVAL,
    ON_POLICY,
    RED_DROP,
    RED_WEIGHT,
    REINFORCE,
    WIDE,
)
from rec_experiments.analysis.results import figure_data
from rec_experiments.cli import claims as claims_command
from rec_experiments.cli.main import run_command

LEARNS, COLLAPSES = (0.3, 0.5, 0.6, 0.6, 0.6), (0.3, 0.4, 0.1, 0.0, 0.0)
DRAWN, JUDGED = [0, 1, 2], list(range(10, 20))


@pytest.fixture
def fig5(tmp_path, monkeypatch):
    """Figure 5 with finished runs on disk at scale mini and its own rate; no other figure has any.

    On-policy all arms learn alike; on stale data REINFORCE collapses.
    """
    jobs = []
    for column in (ON_POLICY, INTERVAL):
        for arm in (REINFORCE, RED_WEIGHT, RED_DROP, WIDE):
            for seed in (*DRAWN, *JUDGED):
                bad = (arm, column) == (REINFORCE, INTERVAL)
                values = [each + 0.001 * seed for each in (COLLAPSES if bad else LEARNS)]
                path = tmp_path / "runs" / str(len(jobs))
                found = {row["step"]: row for row in rows(values)}
                write_run(path, [found.get(step, {"step": step}) for step in range(101)])
                config = {"seed": seed, "steps": 100}
                jobs.append(SimpleNamespace(label=arm, heading=column, config=config, path=path))
    absent = SimpleNamespace(**{**vars(jobs[0]), "path": tmp_path / "none"})

    def composed(name, overrides):
        panel = SimpleNamespace(metric="eval/accuracy", label="accuracy", log=False)
        figure = SimpleNamespace(
            title=name, caption="", scale="paper" if "scale=paper" in overrides else "mini",
            panels=[panel], grid={"seed": DRAWN}, picture="curves", statistics=[], columns="",
            map={},
        )  # fmt: skip
        if name != "fig5" or "scale=paper" in overrides or any("rate=" in o for o in overrides):
            return figure, [absent]
        typed = [o.removeprefix("seed=").split(",") for o in overrides if o.startswith("seed=")]
        seeds = [int(seed) for seed in typed[-1]] if typed else DRAWN
        return figure, [job for job in jobs if job.config["seed"] in seeds]

    def figure_of(name, overrides, for_claims=False):
        seeds = [f"seed={','.join(map(str, [*DRAWN, *JUDGED]))}"] if for_claims else []
        return composed(name, overrides)[0], [*seeds, *overrides]

    monkeypatch.setattr(figure_data, "composed", composed)
    monkeypatch.setattr(figure_data, "figure_of", figure_of)
    monkeypatch.setattr(figure_data, "begun", lambda *arguments: (1, 1))
    monkeypatch.setattr(sweeps, "names", lambda: ["fig3", "fig5", "fig6"])
    monkeypatch.setattr(sweeps, "swept", several)
    return tmp_path


def test_the_card_comes_first_and_has_a_column_for_each_rate(fig5, capsys):
    run_command("claims", f"--out={fig5}/claims.json", "--scale=mini")
    first, second, _, head, *lines = capsys.readouterr().out.splitlines()
    assert first == "mini at 3.0e-05: 4 of 19 claims supported, 15 not run; on 10 seeds"
    assert second == "mini at 1.0e-04: 0 of 19 claims supported, 19 not run"
    assert head.split("  ")[0] == "claim"
    assert lines[0].split() == ["on-policy-parity-red-drop", "supported", "not", "run"]
    assert lines.index("") == 4  # claims without any run are counted above, and not listed
    assert "claims --commands" in lines[-2]
    found = json.loads((fig5 / "claims.json").read_text())
    assert [each["rate"] for each in found] == [3e-5] * 19 + [1e-4] * 19
    holds = next(each for each in found if each["claim"] == "data-weighting-holds-red-drop")
    assert (holds["verdict"], holds["seeds"], holds["claim_seeds"]) == ("supported", 10, JUDGED)
    primary, gain, control = holds["parts"]
    assert (primary["seeds"], primary["direction"]) == (JUDGED, "not lower")
    assert primary["delta"] == pytest.approx(0.06) == gain["mean"] / 5
    assert (control["delta"], control["outcome"]) == (0, "supported")


def test_details_are_below_the_card(fig5, capsys):
    run_command("claims", "--details=data-weighting-holds-red-drop", "--scale=mini")
    printed = capsys.readouterr().out
    card, _, details = printed.partition("\n\nOn stale data RED-Drop")
    assert "on-policy-parity-red-drop" in card
    assert "on-policy-parity-red-drop" not in details
    assert "“Figure 5 presents GSM8k results […]" in details
    assert "expected: not lower, δ = 0.06; 10 seeds" in details
    assert "Runs of an earlier release." in details


def test_the_page_has_the_papers_curves_and_every_setting(fig5):
    run_command("claims", f"--out={fig5}/claims.md", "--scale=mini,paper")
    text = (fig5 / "claims.md").read_text()
    assert "| claim | the paper's curves | mini at 3.0e-05 | mini at 1.0e-04 | paper |" in text
    assert "| on-policy-parity-red-drop | supported | supported | not run | not run |" in text
    assert "no runs of these seeds yet" not in text
    run_command("claims", f"--out={fig5}/claims.md", "--scale=mini", "optimizer.learning_rate=1e-3")
    assert "There are no runs of these seeds yet." in (fig5 / "claims.md").read_text()


def test_typed_seeds_and_rates_replace_those_of_the_scale(fig5, capsys):
    run_command("claims", "--scale=mini", "seed=0,1")
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("mini at 3.0e-05: ")
    assert first.endswith("15 not run; on 2 seeds")
    run_command("claims", "--scale=mini", "optimizer.learning_rate=1e-3")
    counts, empty, *advice = capsys.readouterr().out.splitlines()
    assert (counts, empty) == ("mini: 0 of 19 claims supported, 19 not run", "")
    assert advice == tables.MISSING.splitlines()


def test_every_miniature_is_judged_where_no_scale_is_named(monkeypatch, capsys):
    asked = []

    def judged(setting, runs, overrides, progress):
        progress("fig3")
        asked.append((setting.title, overrides))
        return paper_curves.verdicts()

    monkeypatch.setattr(claims_command, "judged", judged)
    run_command("claims", "seed=0,1")
    rates = {"mini": ("3.0e-05", "1.0e-04"), "mini_chain": ("3.0e-05", "4.8e-04")}
    titles = [f"{scale} at {rate}" for scale in rates for rate in rates[scale]]
    assert asked == [(title, ["seed=0,1"]) for title in titles]


def test_a_figure_with_several_values_of_a_key_judges_no_claim(fig5, capsys):
    run_command("figures", "fig5", f"--out={fig5}", "optimizer.weight_decay=0,0.1")
    assert "supported" not in capsys.readouterr().out
    assert "Claims" not in (fig5 / "fig5.txt").read_text()


def test_a_figures_files_hold_the_claims_that_it_judges(fig5, capsys):
    """On the seeds of claims; those that the figure draws have been seen."""
    run_command("figures", "fig5", f"--out={fig5}")
    printed = capsys.readouterr().out
    found = json.loads((fig5 / "fig5.json").read_text())["claims"]
    assert {each["claim"].rsplit("-red", 1)[0] for each in found} == {
        "on-policy-parity", "data-weighting-holds"
    }  # fmt: skip
    assert {(each["verdict"], each["seeds"]) for each in found} == {("supported", 10)}
    assert "A quick look at 3 seeds; claims need 10." in printed
    for each in found:
        start = f"{each['claim']}: supported at mini at 3.0e-05, 10 seeds"
        assert start in printed
        assert start in (fig5 / "fig5.txt").read_text()


def several(figure, overrides):
    """As sweeps.swept, of a figure that shows no key side by side."""
    keys = [line.partition("=")[0] for line in overrides if "," in line]
    return [key for key in keys if key not in ("seed", "hydra.sweeper.only")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig5"], "fig5: must be KEY=VALUE"),
        (["--commands", "seed=0"], "--commands: takes only --scale"),
        (["--scale=tiny"], "--scale=tiny: does not exist; allowed, separated by commas: lm, mini"),
        (["--out=claims.txt"], "--out=claims.txt: the name must end in .json or .md"),
        (["--runs=/nowhere"], "--runs=/nowhere: no such folder"),
        (
            ["optimizer.learning_rate=3e-5,1e-4"],
            "learning_rate: claims are judged at one",
        ),
        (["--scale=mini", "--out=/nowhere/claims.md"], "/nowhere/claims.md: cannot be written"),
    ],
)
def test_bad_input_is_one_line(fig5, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        run_command("claims", *arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    assert message in error


def test_the_commands_make_the_runs_of_both_rates(capsys):
    run_command("claims", "--commands", "--scale=mini")
    lines = capsys.readouterr().out.splitlines()
    seeds = ",".join(map(str, JUDGED))
    start = "python -m rec_experiments -m sweep=fig3 scale=mini"
    assert lines[0] == f"{start} seed={seeds}"
    assert f"{start} seed={seeds} optimizer.learning_rate=0.0001" in lines
    assert sum("sweep=fig10 " in line for line in lines) == 1  # its arms set rates themselves
