"""Sweeps.

1. Every figure lists exactly the arms, schedules and seeds of the paper, with the values of its
   Tables 1 and 2, against a table written by hand here.
2. In miniature the same arms and schedules are listed, with the values of conf/config.yaml (two
   figures).
3. A value on the command line replaces an axis; labels choose arms; a job knows nothing of a sweep.
4. Each job has its own folder, and figures share runs.
5. A sweep runs what is not done, goes on past failed and killed jobs, names them, and exits with 1.
6. Jobs of a local sweep share their first draws, which changes nothing but times, in a folder that
   is gone when the sweep has ended.
"""

import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import hydra
import pytest
from conftest import SMALL, refused, run, timeless
from omegaconf import OmegaConf

from rec_experiments import sweeps
from rec_experiments.cli.main import run_command
from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import class_name
from rec_experiments.config.composition import composing
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.jobs import distinct

ROOT = Path(__file__).parents[2]

# (learning rate, prompts, K, weight decay, warm-up, evaluation temperature, steps, model, data)
GSM8K = (1e-6, 96, 8, 0.01, 0, 1.0, 150, "Qwen/Qwen2.5-1.5B-Instruct", "openai/gsm8k")
TOOLACE = (1e-6, 96, 8, 0.01, 0, 1.0, 400, "meta-llama/Llama-3.2-3B-Instruct", "Team-ACE/ToolACE")
GURU = (1e-6, 64, 16, 0.1, 80, 1.0, 1500, "Qwen/Qwen2.5-7B-Instruct", "LLM360/guru-RL-92k")
MATH = (
    5e-7,
    64,
    16,
    0.1,
    40,
    0.6,
    450,
    "meta-llama/Llama-3.1-8B-Instruct",
    "DigitalLearningGmbH/MATH-lighteval",
)

# (mask, importance weight, ε_low, ε_high, advantage and shift, data weighting, regularizer)
NONE = (None, None)
REINFORCE = ("NoClip", "NoWeight", *NONE, "GroupMean", 0.0, "Uniform", "NoRegularizer")
GRPO = ("OneSide", "ImportanceWeight", 0.2, 0.2, "GroupStandard", None, "Uniform", "NoRegularizer")
NOIS = ("OneSide", "NoWeight", 0.2, 0.2, "GroupMean", 0.0, "Uniform", "NoRegularizer")
IS = ("OneSide", "ImportanceWeight", 0.2, 0.2, "GroupMean", 0.0, "Uniform", "NoRegularizer")
WIDE = ("OneSide", "NoWeight", 0.6, 2.0, "GroupMean", 0.0, "Uniform", "NoRegularizer")
RED_DROP = ("NoClip", "NoWeight", *NONE, "GroupMean", 0.0, "DropNegatives", "NoRegularizer")
RED_WEIGHT = ("NoClip", "NoWeight", *NONE, "GroupMean", 0.0, "ExponentialWeight", "NoRegularizer")
OPMD = ("NoClip", "NoWeight", *NONE, "GroupMean", 0.0, "Uniform", "SequenceSquare")
ASYMRE = ("NoClip", "NoWeight", *NONE, "GroupMean", -0.1, "Uniform", "NoRegularizer")


def mask(arm, kind, low=0.2, high=0.2):
    return (kind, arm[1], low, high, *arm[4:])


INTERVAL, OFFSET, OFFLINE, ON_POLICY = (20, 0), (1, 10), (None, 0), (1, 0)
THREE = (INTERVAL, OFFSET, OFFLINE)

# Figure: setting, schedules, {label: (arm, learning rate as a multiple of the setting's)}.
FIGURES = {
    "fig3": (GSM8K, THREE, {
        "REINFORCE": (REINFORCE, 1),
        "GRPO": (GRPO, 1),
        "REC-OneSide-NoIS (0.2)": (NOIS, 1),
        "REC-OneSide-IS (0.2)": (IS, 1),
        "REC-OneSide-NoIS (0.6, 2.0)": (WIDE, 1),
    }),
    "fig4": (TOOLACE, (INTERVAL,), {
        "REC-OneSide-NoIS (0.2, 0.25)": (mask(NOIS, "OneSide", 0.2, 0.25), 1),
        "REC-OneSide-IS (0.2, 0.25)": (mask(IS, "OneSide", 0.2, 0.25), 1),
        "REC-Ring-NoIS (0.2, 0.25) & (0.6, 2.0)": (mask(NOIS, "Ring", 0.2, 0.25), 1),
        "REC-OneSide-NoIS (0.6, 2.0)": (WIDE, 1),
        "REC-TwoSide-NoIS (0.2, 0.25)": (mask(NOIS, "TwoSide", 0.2, 0.25), 1),
        "REC-TwoSide-NoIS (0.6, 2.0)": (mask(NOIS, "TwoSide", 0.6, 2.0), 1),
    }),
    "fig5": (GSM8K, (ON_POLICY, INTERVAL), {
        "REINFORCE": (REINFORCE, 1),
        "RED-Weight": (RED_WEIGHT, 1),
        "RED-Drop": (RED_DROP, 1),
        "REC-OneSide-NoIS (0.6, 2.0)": (WIDE, 1),
    }),
    "fig6": (GURU, (INTERVAL,), {
        "GRPO": (GRPO, 1), "REC-OneSide-NoIS (0.2)": (NOIS, 1), "RED-Weight": (RED_WEIGHT, 1),
    }),
    "fig7": (MATH, (INTERVAL,), {
        "GRPO": (GRPO, 1), "REC-OneSide-NoIS (0.2)": (NOIS, 1), "RED-Weight": (RED_WEIGHT, 1),
    }),
    "fig9": (GSM8K, THREE, {
        "REINFORCE": (REINFORCE, 1),
        "GRPO": (GRPO, 1),
        "REC-TwoSide-NoIS (0.2)": (mask(NOIS, "TwoSide"), 1),
        "REC-TwoSide-IS (0.2)": (mask(IS, "TwoSide"), 1),
        "REC-Ring-NoIS (0.2, 0.2) & (0.6, 2.0)": (mask(NOIS, "Ring"), 1),
    }),
    "fig10": (GSM8K, (INTERVAL,), {
        "GRPO (0.2), lr 1e-5": (GRPO, 10),
        "GRPO (0.2), lr 5e-6": (GRPO, 5),
        "GRPO (0.2), lr 2e-6": (GRPO, 2),
        "REC-OneSide-NoIS (0.2), lr 1e-5": (NOIS, 10),
        "REC-OneSide-NoIS (0.2), lr 5e-6": (NOIS, 5),
        "REC-OneSide-NoIS (0.2), lr 2e-6": (NOIS, 2),
        "REC-OneSide-NoIS (0.6, 2.0), lr 1e-6": (WIDE, 1),
        "REINFORCE, lr 2e-6": (REINFORCE, 2),
    }),
    "fig11": (GSM8K, THREE, {
        "REINFORCE": (REINFORCE, 1),
        "REC-OneSide-NoIS (0.6, 2.0)": (WIDE, 1),
        "OPMD (0.1)": (OPMD, 1),
        "AsymRE (-0.1)": (ASYMRE, 1),
    }),
}  # fmt: skip


@functools.cache
def jobs_of(name, scale):
    return sweeps.jobs(sweeps.load_figure(name, [f"scale={scale}"]))


def arm_of(config):
    clip, advantage = config["clip"], config["advantage"]
    if class_name(clip) == "Ring":
        assert (clip["outer_low"], clip["outer_high"]) == (0.6, 2.0)
    assert config["data_weighting"].get("temperature", 1.0) == 1.0
    assert config["regularizer"].get("tau", 0.1) == 0.1
    return (
        class_name(clip), class_name(config["weight"]), clip.get("low"), clip.get("high"),
        class_name(advantage), advantage.get("shift"),
        class_name(config["data_weighting"]), class_name(config["regularizer"]),
    )  # fmt: skip


def schedule_of(config):
    return (config["sync"]["interval"], config["sync"]["offset"])


def paper_row(config, setting):
    data = next(name for name in (setting[-1], "") if name in json.dumps(config["dataset"]))
    return (
        config["optimizer"]["learning_rate"], config["batch_size"], config["group_size"],
        config["optimizer"]["weight_decay"], config["optimizer"]["warmup_steps"],
        config["sampler"]["eval_temperature"], config["steps"], config["model"]["path"], data,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [name if name == "fig3" else pytest.param(name, marks=pytest.mark.long) for name in FIGURES],
)
def test_paper_scale_is_the_papers_tables(name):
    setting, schedules, arms = FIGURES[name]
    steps = 160 if name == "fig10" else setting[6]
    found = {}
    for job in jobs_of(name, "paper"):
        config = job.config
        assert config["optimizer"]["betas"] == [0.9, 0.999]
        assert config["optimizer"]["max_grad_norm"] == 1.0
        assert config["sampler"]["temperature"] == 1.0
        key = (job.label, schedule_of(config), config["seed"])
        assert key not in found
        found[key] = (arm_of(config), paper_row(config, setting))
    assert found == {
        (label, schedule, 42): (
            arm,
            (pytest.approx(setting[0] * factor), *setting[1:6], steps, *setting[7:]),
        )
        for label, (arm, factor) in arms.items()
        for schedule in schedules
    }


@pytest.mark.parametrize("name", ["fig3", "fig10"])
def test_the_miniature_has_the_same_arms_and_schedules(name):
    _, schedules, arms = FIGURES[name]
    jobs = jobs_of(name, "mini")
    found = [(schedule_of(j.config), j.config["seed"], arm_of(j.config)) for j in jobs]
    expected = [
        (schedule, seed, arm)
        for seed in (0, 1, 2)
        for schedule in schedules
        for arm, _ in arms.values()
    ]
    assert found == expected
    assert all(class_name(j.config["model"]) == "Tiny" and j.config["steps"] == 150 for j in jobs)
    base = jobs[0].config["optimizer"]["learning_rate"]
    if name == "fig10":
        rates = [job.config["optimizer"]["learning_rate"] for job in jobs[:8]]
        assert rates == [pytest.approx(3e-5 * factor) for _, factor in arms.values()]
    else:
        assert {j.config["optimizer"]["learning_rate"] for j in jobs} == {base}
        assert [job.label for job in jobs[: len(arms)]] == list(arms)
    assert len({job.path for job in jobs}) == len(jobs)


@pytest.mark.parametrize(
    "values",
    [
        ["optimizer.learning_rate=1e-4", "seed=3"],
        ["clip.low=null", "clip.high=2.0", "dataset.modulus=9"],
        ["run_dir='a b'", "output_dir=${hydra:runtime.cwd}"],
        ["model.warm_start={steps: 3}"],
        ["++steps=7"],
    ],
)
def test_values_are_set_as_hydra_sets_them(values):
    lines = ["algo=rec_oneside_nois", "sync=offline", *values]
    answers = []
    for by_hydra in (True, False):
        try:
            with composing() as compose:
                composed = (hydra.compose if by_hydra else compose)("config", lines)
                answers.append(OmegaConf.to_container(composed))
        except UserError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]


def test_figures_share_runs():
    few = ["seed=0", "sync=interval20"]
    paths = {
        name: {job.path for job in sweeps.jobs(sweeps.load_figure(name), few)}
        for name in ("fig3", "fig9", "fig10", "fig11")
    }
    assert len(paths["fig3"] & paths["fig11"]) == 2  # REINFORCE, REC (0.6, 2.0)
    assert len(paths["fig3"] & paths["fig9"]) == 2  # REINFORCE, GRPO
    assert len(paths["fig10"] & paths["fig3"]) == 1  # REC (0.6, 2.0)


def sweep(only=("*",)):
    return dataclasses.replace(
        sweeps.load_figure("fig3"),
        arms={"A": ["algo=grpo"], "B (0.6, 2.0)": ["algo=reinforce", "clip=one_side"]},
        grid={"seed": [0, 1], "sync": ["offline", "offset10"]},
        only=list(only),
    )


def lines(overrides, only=("*",)):
    return [" ".join(point.overrides) for point in sweeps.points(sweep(only), overrides)]


def test_seeds_are_outermost_and_arms_innermost():
    """So that a third of the time gives a whole figure with one seed."""
    assert lines([]) == [
        f"seed={seed} sync={sync} {arm}"
        for seed in (0, 1)
        for sync in ("offline", "offset10")
        for arm in ("algo=grpo", "algo=reinforce clip=one_side")
    ]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=5,6", "sync=offline"],
         ["seed=5 sync=offline algo=grpo", "seed=6 sync=offline algo=grpo"]),
        (["seed=range(2)", "sync=offline"],
         ["seed=0 sync=offline algo=grpo", "seed=1 sync=offline algo=grpo"]),
        (["seed=5", "sync=offline", "steps=3"], ["seed=5 sync=offline steps=3 algo=grpo"]),
        (["seed=5", "sync=offline", "sweep=fig3", "scale=paper", "hydra/launcher=basic"],
         ["seed=5 sync=offline algo=grpo"]),
    ],
)  # fmt: skip
def test_the_command_line_wins(overrides, expected):
    assert lines(overrides, only=["A"]) == expected


@pytest.mark.parametrize("name", ["fig3", "ladder"])
def test_a_swept_key_is_part_of_the_column(name):
    """Runs that share a curve's mean differ in nothing but their seed."""
    figure = sweeps.load_figure(name)
    points = sweeps.points(figure, ["optimizer.weight_decay=0,0.1", "seed=0,1"])
    cells = [(p.label, p.heading, p.lines["seed"]) for p in points]
    assert len(set(cells)) == len({frozenset(p.overrides) for p in points})
    assert all(
        ("weight_decay = 0.1" in p.heading) == (p.lines["optimizer.weight_decay"].endswith("0.1"))
        for p in points
    )


def test_arms_are_chosen_by_label():
    assert len(lines([], only=["B*"])) == 4
    assert len(lines([], only=["A", "B (0.6, 2.0)"])) == 8
    with pytest.raises(ValueError, match=r"only=C\*: matches no arm; allowed.*B \(0.6, 2.0\)"):
        sweep(only=["C*"])


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("fig8", [], "sweep=fig8: no such figure; allowed: fig3, fig4"),
        (
            "fig3",
            ["scale=large"],
            "scale=large: no such choice; allowed: lm, mini, mini_chain, paper, small",
        ),
        ("fig3", ["scale='../config'"], "scale=../config: no such choice; allowed: lm, mini, "),
        ("fig3", ["algo=opmd"], "algo=opmd: the arm REINFORCE sets algo; choose arms with"),
        ("fig10", ["++optimizer.learning_rate=1e-3"], "sets optimizer.learning_rate; choose arms"),
        ("fig3", ["seed=0,many"], "seed=many: must be a whole number"),
        ("fig3", ["stepz=3"], "did you mean steps"),
        ("fig3", ["seed=interval(0, 1)"], "cannot be swept"),
        ("fig3", ["hydra.sweeper.only=[]"], r"hydra\.sweeper\.only=\[\]: selects no arm"),
        ("fig3", ["hydra.sweeper.only=3"], r"hydra\.sweeper\.only\.0=3: must be a text"),
        ("fig3", ["hydra.sweeper.title=3"], r"title=3: must be one of hydra\.sweeper\.only="),
        (
            "fig3",
            ["hydra.sweeper.statistics=[foo]"],
            r"statistics\.0=foo: must be one of lowest, highest, median, mean",
        ),
        ("fig3", ["hydra.sweeper.panels=[foo]"], r"hydra\.sweeper\.panels=foo: no such choice"),
    ],
)
def test_bad_input_is_one_line(name, overrides, message):
    with pytest.raises(UserError, match=message) as caught:
        sweeps.jobs(sweeps.load_figure(name, overrides), overrides)
    assert "\n" not in str(caught.value)


def test_a_fixed_run_dir_cannot_hold_a_sweep():
    overrides = ["run_dir=here", "sync=offline", "seed=0"]
    with pytest.raises(UserError, match="run_dir=here: every run of a sweep needs its own folder"):
        distinct(sweeps.jobs(sweeps.load_figure("fig5", overrides), overrides))


# A task that takes no time: seed 1 raises, 2 is killed, 3 is a user's mistake, 4 is left undone.
STUB = """
import os, signal, sys, time
from pathlib import Path
from rec_experiments.cli import main, train
from rec_experiments.cli.errors import one_line_errors
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.samplers.shared import FOLDER
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import run_path
from rec_experiments.common.errors import UserError

def stop(number, frame):
    print("told to stop by SIGTERM", flush=True)
    sys.exit(128 + number)

def task(config):
    path = run_path(schema.build(config, Experiment).config())
    path.mkdir(parents=True, exist_ok=True)
    print("seed", config.seed, flush=True)
    (path / "told").write_text(os.environ.get(FOLDER, ""))
    if FOLDER in os.environ:
        Path(os.environ[FOLDER], str(config.seed)).touch()
    if config.seed == 1:
        raise KeyError("boom")
    if config.seed == 2:
        os.kill(os.getpid(), 9)
    if config.seed == 3:
        raise UserError("seed=3: not today")
    if config.seed == 6:
        signal.signal(signal.SIGTERM, stop)
        (path / "ready").touch()
        time.sleep(600)
    if config.seed != 4:
        RunFolder(path).set_status("done")

if __name__ == "__main__":
    train.start = one_line_errors()(task)
    main.main()
"""

# A run in earnest, which says in the end where the shared draws are, and which, and what was
# imported only then.
TELLING = """
import json, os, sys
from pathlib import Path
from rec_experiments.cli import main, train
from rec_experiments.samplers.shared import FOLDER
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import run_path

start = train.start

def task(config):
    before = {*sys.modules}
    start(config)
    path = run_path(schema.build(config, Experiment).config())
    late = [name for name in sys.modules if name not in before]
    files = {file.name: file.stat() for file in Path(os.environ[FOLDER]).iterdir()}
    told = {name: (found.st_ino, found.st_mtime_ns) for name, found in files.items()}
    (path / "told").write_text(json.dumps([os.environ[FOLDER], told, late]))

if __name__ == "__main__":
    train.start = task
    main.main()
"""


@pytest.fixture
def multirun(tmp_path, request):
    script = tmp_path / "stub.py"
    script.write_text(getattr(request, "param", STUB))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]

    def start(*overrides, until=None):
        """The sweep's end; where `until` says so, SIGTERM comes first, to its first process."""
        process = subprocess.Popen(
            [sys.executable, str(script), "-m", f"output_dir={tmp_path}/runs", *overrides],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if until:
            while process.poll() is None and not until():
                time.sleep(0.05)
            process.terminate()
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return start


def assert_gone(tmp_path):
    """The jobs were told of one folder for their draws, and it is no longer there."""
    [folder] = {told.read_text() for told in tmp_path.glob("runs/*/told")}
    assert "rec_draws_" in folder
    assert not Path(folder).exists()


def test_a_sweep_goes_on_past_failures_and_names_them(multirun, tmp_path):
    done = multirun("seed=0,1,2,3,4,5")
    assert done.returncode == 1
    assert "6 runs, 0 already finished" in done.stdout
    assert "2 done, 4 failed" in done.stdout
    reasons = {
        line.split("_seed")[1][0]: line.split(": ", 1)[1]
        for line in done.stderr.split("failed:\n")[1].splitlines()
    }
    assert reasons == {
        "1": "KeyError: 'boom'",
        "2": "killed by SIGKILL",
        "3": "seed=3: not today",
        "4": "ended without an error, but its run is not done",
    }
    logs = {log.parent.name.split("_seed")[1][0]: log for log in tmp_path.glob("runs/*/log.txt")}
    assert sorted(logs) == list("012345")
    assert_gone(tmp_path)
    assert "seed 0" in logs["0"].read_text()
    assert "seed 1" not in logs["0"].read_text()
    assert "Traceback" in logs["1"].read_text()

    again = multirun("seed=0,4,5")  # seeds 0 and 5 are done
    assert "3 runs, 2 already finished" in again.stdout
    assert "0 done, 1 failed" in again.stdout


@pytest.mark.long
def test_a_tracker_that_is_chosen_later_is_told_of_finished_runs(multirun, tmp_path):
    pytest.importorskip("tensorboard")
    multirun("seed=0")
    [folder] = tmp_path.glob("runs/*_seed0_*")
    (folder / "metrics.jsonl").write_text('{"step": 0, "eval/accuracy": 0.25}\n')
    told = multirun("seed=0", "tracking=tensorboard").stdout
    assert "1 runs, 1 already finished" in told
    assert "tracked 1 runs that were already finished" in told
    assert f"tensorboard --logdir {folder.parent}" in told
    assert [*folder.glob("tensorboard/events.*")]
    assert "tracked 1" not in multirun("seed=0", "tracking=tensorboard").stdout


def test_sigterm_to_a_sweep_stops_its_jobs(multirun, tmp_path):
    """The stub's job of seed 6 sleeps for ten minutes, and prints a line at SIGTERM."""
    stopped = multirun("seed=6", until=lambda: any(tmp_path.glob("runs/*_seed6_*/ready")))
    assert stopped.returncode == 128 + signal.SIGTERM
    assert stopped.stderr == "interrupted; finished runs are kept, the same command continues\n"
    [log] = tmp_path.glob("runs/*_seed6_*/log.txt")
    assert log.read_text() == "seed 6\ntold to stop by SIGTERM\n"
    assert_gone(tmp_path)


def test_a_sweep_says_what_became_of_each_job(multirun, tmp_path):
    arguments = ["sweep=fig3", "sync=offline", "seed=0,1", "hydra.sweeper.only=[GRPO,*0.6*]"]
    done = multirun(*arguments)
    assert done.returncode == 1, done.stderr
    assert "2 done, 2 failed" in done.stdout
    assert re.search("^all: .*offline", done.stdout, re.MULTILINE)  # what they share, once
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert all(re.search(r"seed [01]: (done|failed)(, \d+ s left)?$", line) for line in lines)
    manifest = sweeps.read_manifest(tmp_path / "runs/manifests/fig3.csv")
    assert sorted(line.seed for line in manifest) == [0, 0, 1, 1]
    for line in manifest:
        assert RunFolder(tmp_path / "runs" / line.run).is_finished(False) == (line.seed == 0)


@pytest.mark.parametrize("multirun", [TELLING], indirect=True)
def test_jobs_that_share_draws_are_the_runs_that_they_are_alone(multirun, tmp_path):
    """The second one reads all that the first has drawn from the initial weights: it writes no file
    of its own, and replaces none. Under interval 2 a third batch is drawn from other weights.
    Whoever installs or edits something meanwhile disturbs neither: all is imported before."""
    common = [*SMALL, "sync.interval=2"]
    arms = ["grpo", "reinforce"]
    done = multirun(*common, f"algo={','.join(arms)}", "hydra.launcher.jobs=1")
    assert done.returncode == 0, done.stderr
    folders = [RunFolder(*tmp_path.glob(f"runs/{arm}_*")) for arm in arms]
    (one, first, late), (other, second, _) = (
        json.loads((folder.path / "told").read_text()) for folder in folders
    )
    assert not [name for name in late if name.startswith(("rec_experiments", "torch"))]
    assert one == other
    assert first == second
    assert len(first) == 2 * 2  # the evaluation at the start and two batches at once, with digests
    assert not Path(one).exists()
    for arm, folder in zip(arms, folders, strict=True):
        alone = run(tmp_path / arm, *common, f"algo={arm}")
        assert [*map(timeless, folder.metrics())] == [*map(timeless, alone.metrics())]
        assert folder.provenance()["shared_draws"] is True
        assert folder.provenance()["starts"][0]["shared_draws"] is True


def test_a_mistake_is_told_before_anything_starts(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["-m", "sweep=fig3", "seed=0", "steps=5,0"]
    assert refused(words, monkeypatch, capfd) == "error: steps=0: must be at least 1"
    assert [*tmp_path.iterdir()] == []


def test_list_prints_each_run_once_and_its_resources(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path))
    run_command("sweeps", *["list", "fig5", "sync=offline,on_policy", "seed=0"])
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 8
    assert out.splitlines()[0] == "seed=0 setting=mini/gsm8k sync=offline algo=reinforce"
    assert "8 runs, no GPU" in err
