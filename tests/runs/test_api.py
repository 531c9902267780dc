"""Python without the command line: the same experiment, the same run, its numbers in a frame; and
objects of Python in place of names.

1. A model, rows and a function give the same run as their files do, and stay as they are.
2. Equal objects resume a run; no other process can, and says so in one line.
"""

import json
import shlex
import subprocess
import sys

import pytest
import torch
import yaml
from conftest import SMALL, command, resolve, timeless
from language_models import tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

import rec_experiments
from rec_experiments import Experiment, load_runs
from rec_experiments.common import live
from rec_experiments.common.errors import UserError
from rec_experiments.runs.evaluation import evaluate
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.runs.saved import experiment_of


def test_an_experiment_is_what_the_command_line_composes():
    composed = Experiment.compose("algo=rec_ring", "sync=offset10")
    assert composed.config == resolve("algo=rec_ring", "sync=offset10")
    assert composed.settings.algo.name == "REC-Ring-NoIS"


def test_runs_and_their_numbers(tmp_path):
    paths = [
        Experiment.compose(*SMALL, f"seed={seed}", f"output_dir={tmp_path}").run()
        for seed in (0, 1)
    ]
    assert all(path.parent == tmp_path for path in paths)
    frame = load_runs(tmp_path, keys=["optimizer.learning_rate"])
    about = ["figure", "arm", "column", "seed", "run", "state", "release", "path"]
    assert list(frame.columns[:10]) == [*about, "optimizer.learning_rate", "step"]
    assert set(frame["column"]) == {"interval 20"}
    assert len(frame) == 2 * 4  # steps 0 to 3
    assert set(frame["state"]) == {"done"}
    assert set(frame["seed"]) == {0, 1}
    assert set(frame["optimizer.learning_rate"]) == {5.0e-4}
    last = frame[frame["step"] == 3].set_index("run")["eval/accuracy"]
    assert last.notna().all()
    again = Experiment.compose(*SMALL, "seed=0", f"output_dir={tmp_path}").run()
    assert again in paths  # finished before: nothing is trained
    assert len(load_runs(tmp_path)) == len(frame)


def test_a_folder_may_be_a_run_and_a_damaged_run_is_left_out(tmp_path, capsys):
    for name, rows in (("one", '{"step": 0}\n{"step": 1}\n'), ("torn", "nothing\n{}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(resolve("seed=3")))
        (tmp_path / name / "status.json").write_text('{"state": "failed"}')
        (tmp_path / name / "metrics.jsonl").write_text(rows)
    assert [*load_runs(tmp_path / "one")["step"]] == [0, 1]
    assert set(load_runs(tmp_path)["run"]) == {"one"}
    assert capsys.readouterr().err.startswith(f"left out: run folder {tmp_path}/torn")
    with pytest.raises(UserError, match=r"keys=optimizer\.lr: no such key of a run"):
        load_runs(tmp_path, keys=["optimizer.lr"])


def test_what_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        load_runs(tmp_path / "nowhere")
    assert load_runs(tmp_path).empty
    assert {"arm", "step"} <= set(load_runs(tmp_path).columns)


def test_the_package_itself_loads_nothing_heavy():
    code = "import rec_experiments, sys; print({'torch', 'hydra', 'pandas'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
    assert {"Experiment", "algorithm", "load_runs"} <= set(dir(rec_experiments))
    with pytest.raises(AttributeError, match="nothing"):
        rec_experiments.nothing  # noqa: B018


@pytest.mark.parametrize("value", ["é", "~/runs", "a;b"])
def test_a_value_that_needs_quotes_is_told_so_and_goes_with_them(value):
    with pytest.raises(UserError) as refused:
        Experiment.compose(f"output_dir={value}")
    advice = str(refused.value).partition("needs quotes: ")[2]
    [override] = shlex.split(advice)
    assert Experiment.compose(override).config["output_dir"] == value


@pytest.mark.parametrize(
    ("group", "key", "value"), [("advantage", "shift", 10**400), ("dataset", "_target_", [[]])]
)
def test_a_configuration_that_no_run_wrote_is_one_line(group, key, value, tmp_path):
    config = resolve()
    config[group][key] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=f"run folder {tmp_path}: its config.yaml is not that of"):
        experiment_of(tmp_path, [])


# Objects -----------------------------------------------------------------------------------------

TRAIN = [{"question": f"{a}+1=", "answer": a + 1} for a in range(8)]
HELD_OUT = [{"question": f"{a}+2=", "answer": a + 2} for a in range(4)]
SHORT = (
    "algo=grpo", "steps=2", "batch_size=2", "group_size=2", "eval_every=2", "kl_every=0",
    "dataset.max_response_tokens=4", "dataset.max_prompt_tokens=64",
)  # fmt: skip
JUDGE = "def judge(response, answer):\n    return float(len(response) % 2)\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name, rows in (("train", TRAIN), ("test", HELD_OUT)):
        (tmp_path / f"data/{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "length_judge.py").write_text(JUDGE)
    tiny_llama(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "length_judge", raising=False)
    return tmp_path


def of_objects(place, *overrides, verifier=lambda response, answer: float(len(response) % 2)):
    model = AutoModelForCausalLM.from_pretrained(place / "model")
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    return Experiment.compose(
        *SHORT, *overrides, model=(model, tokenizer), rows=(TRAIN, HELD_OUT), verifier=verifier
    )


def test_objects_give_the_run_of_their_files(place):
    experiment = of_objects(place)
    found = RunFolder(experiment.run())
    named = Experiment.compose(
        *SHORT, "model=pretrained", "model.path=model", "dataset=own", "dataset.path=data",
        "dataset.verifier=length_judge.judge",
    )  # fmt: skip
    expected = RunFolder(named.run())
    assert [*map(timeless, found.metrics())] == [*map(timeless, expected.metrics())]
    for one, other in zip(
        experiment.trained_model().parameters(), named.trained_model().parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_the_model_given_is_not_trained_and_equal_ones_resume(place, capsys):
    experiment = of_objects(place)
    original, _ = live.find(experiment.settings.model.path, "model.path")
    before = [each.clone() for each in original.parameters()]
    path = experiment.run()
    assert all(map(torch.equal, before, original.parameters()))
    capsys.readouterr()
    assert of_objects(place).run() == path
    assert "already finished" in capsys.readouterr().out


def test_no_other_process_has_them(place, monkeypatch):
    path = of_objects(place).run()
    monkeypatch.setattr(live, "_objects", {})
    with pytest.raises(UserError, match="was an object of the Python process that made the run"):
        evaluate(str(path), None, [])
    done = command("export", str(path), "out", cwd=place)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: model.path=live:")


def test_a_function_that_can_be_imported_keeps_its_name(place):
    import length_judge

    chosen = of_objects(place, verifier=length_judge.judge).settings.dataset
    assert (chosen.verifier, chosen.verifier_workers) == ("length_judge.judge", 2)


def test_what_objects_cannot_do_is_one_line(place):
    with pytest.raises(UserError, match="pipeline=overlap: draws in another process"):
        of_objects(place, "pipeline=overlap")
    with pytest.raises(UserError, match="must be the dotted name of a function"):
        of_objects(place, verifier=lambda response: 1.0).settings.dataset.load()
