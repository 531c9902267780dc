"""Bad input: one clear line that names the key, the value and what is allowed; exit code 2;
nothing written. CASES run the real command line in an empty folder; RANGES are checked when an
experiment is built."""

import fcntl
import json
import os
import subprocess
import sys

import pytest
import yaml
from conftest import SMALL, composed, experiment, refused, resolve
from omegaconf import OmegaConf

from rec_experiments.common.errors import UserError
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.runs.run import run
from rec_experiments.runs.saved import experiment_of

# Command line, and what the line on stderr says.
CASES = (
    # choices and keys
    ("algo=nothing", "algo=nothing: no such choice; allowed: a3po, "),
    ("algo=grpoo", "algo=grpoo: no such choice; did you mean grpo? --help lists all"),
    ("lr=1e-5", "did you mean optimizer.learning_rate?"),
    ("sync.intervall=3", "no such key; did you mean sync.interval?"),
    ("=3", "=3: must be KEY=VALUE"),
    ("clip.outer_low=0.6", "allowed: high, low"),
    ("+foo=3", "foo: no such key; allowed: "),
    ("+clip.hi=3", "clip.hi: no such key; did you mean clip.high?"),
    ("sync=3", "sync=3: no such choice"),
    ("scale=paper", "scale=paper: belongs to a sweep, which needs -m, as in -m sweep=fig3"),
    (
        "-m sweep=fig1",
        "sweep=fig1: this figure is computed without runs: python -m rec_experiments figures fig1",
    ),
    ("sweep=fig3", "sweep=fig3: belongs to a sweep, which needs -m"),
    ("seed", "seed"),
    ("optimizer.betas=[0.9", "optimizer.betas=[0.9: cannot be read"),
    ("seed=" + "9" * 5000, "9: cannot be read; such a value needs quotes"),
    ("run_dir=a~b", "such a value needs quotes: 'run_dir=\"a~b\"'"),
    ("model=pretrained dataset=own", "dataset.verifier, model.path: have no value"),
    ("seed=${nowhere}", "nowhere"),
    ("optimizer.betas.x=1", "optimizer.betas.x=1: no such key"),
    # classes
    ("clip=timeit.nothing", "clip=timeit.nothing: cannot be imported (AttributeError"),
    (
        "clip=timeit.Timer",
        "clip=timeit.Timer: must be a class derived from rec_experiments.common.pieces.Piece",
    ),
    ("clip=rec_experiments.runs.trackers.NoTracking", "clip=NoTracking: must be a Clip"),
    ("sync=rec_experiments.runs.trackers.NoTracking", "sync=NoTracking: must be a Schedule"),
    (
        "clip=rec_experiments.algo.loss.TokenRatio",
        "TokenRatio: cannot be called like a piece",
    ),
    ("clip=rec_experiments.algo.clips.Reciprocal", "clip.epsilon: has no value"),
    ("adapter=lora", "adapter=lora: needs a model of transformers without a warm start"),
    # types
    ("steps=many", "steps=many: must be a whole number"),
    ("steps=null", "steps=null: must be a whole number"),
    ("clip.low=tight", "clip.low=tight: must be a number, or null"),
    ("optimizer.betas=0.9", "optimizer.betas=0.9: must be a list"),
    ("shuffle=perhaps", "shuffle=perhaps: must be true or false"),
    ("sync.phase=lunar", "sync.phase=lunar: must be one of paper, framework"),
    ("model.warm_start=3", "model.warm_start=3: must be a mapping"),
    # what a run needs
    ("dataset.max_steps=2 dataset.train_problems=9999", "dataset.train_problems=9999"),
    ("ranks=2", "ranks=2: must be the number of processes that were started, 1;"),
    ("device=cuda", "device=cuda: torch "),
    ("dataset.max_prompt_tokens=6", "dataset.max_prompt_tokens=6: a prompt has "),
    ("dataset.max_response_tokens=5000", "exceeds the model's context of 4096 tokens"),
    ("model=pretrained model.path=./no-such-model", "model.path=./no-such-model: no such folder"),
    ("batch_size=1000000000000", "batch_size=1000000000000: "),
    ("run_dir=/dev/null/run", "run_dir=/dev/null/run"),
)


@pytest.mark.parametrize(("words", "told"), CASES, ids=[words[:60] for words, _ in CASES])
def test_bad_input_is_one_line_and_leaves_nothing(words, told, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    small = [] if "model=pretrained" in words else SMALL
    assert told in refused([*small, *words.split(" ")], monkeypatch, capfd)
    assert list(tmp_path.iterdir()) == []


# Choices of groups, KEY=VALUE out of range, and why: each kind of bound, and each check in a class.
RANGES = (
    ("", "seed=-1", "at least 0"),
    ("", "seed=18446744073709551616", "below 9223372036854775808"),
    ("", "group_size=1", "at least 2, because this method compares"),
    ("algo=dapo advantage=batch_mean data_weighting=uniform", "group_size=1", "at least 2"),
    ("", "steps=0", "at least 1"),
    ("", "micro_batch_size=0", "at least 1, or null"),
    ("", "threads=1000000", "at most 1024"),
    ("", "ranks=17", "at most the 16 prompts"),
    ("", "clip.low=1.5", "at most 1, or null"),
    ("", "clip.high=.nan", "a finite number"),
    ("", "optimizer.betas=[0.9,1]", "optimizer.betas.1=1: must be below 1"),
    ("", "optimizer.betas=[0.9]", "a list of at least 2"),
    ("algo=rec_ring", "clip.low=0.7", "clip.outer_low=0.6: must be at least low=0.7"),
    ("", "sync.interval=1000000000000", "at most 1000000"),
    ("", "sync.offset=1000000000000", "at most 1000000"),
    ("sync=offline", "sync.offset=3", "must be 0"),
    ("sync=in_flight", "sync.interval=2", "sync.interval=2: must be 1"),
    ("sync=in_flight", "sync.versions=1", "at least 2"),
    ("sync=in_flight sync.offset=2", "sync.max_age=1", "at least offset=2"),
    ("sync=in_flight dataset=calculator", "seed=0", "a data set whose responses have one turn"),
    ("sync=in_flight sampler=vllm", "sync.cache=kept", "or sampler=native"),
    ("", "sampler.temperature=1e-300", "at least 0.001"),
    ("", "sampler.eval_temperature=1e-300", "at least 0.001, or 0"),
    ("sampler=vllm", "sampler.eval_temperature=0.001", "at least 0.01, or 0"),
    ("algo=max_at_k", "advantage.k=9", "at most group_size=8"),
    ("correction=band", "correction.low=2", "between 0 and 1"),
    ("correction=kpop", "correction.low=0.5", "between 0 and 0"),
    ("weight=bounded", "weight.floor=1.3", "at most cap=1.2"),
    ("weight=capped", "weight.cap=1e9", "at most"),
    ("clip=balanced", "clip.lower_start=0.95", "between 0 and lower_end"),
    ("clip=balanced", "clip.upper_start=0.95", "between 1 and upper_end"),
    ("clip=covariance", "clip.above=6", "at most below=5.0"),
    ("reward=noise", "reward.low=2", "at most high=1.0"),
    ("", "model.heads=5", "must divide hidden_size=64"),
    ("", "model.warm_start.steps=-1", "at least 0"),
    ("model=pretrained model.shared_prompts=true", "model.attention=eager", "must be sdpa"),
    ("model=pretrained model.shared_prompts=true", "model.packed=true", "must be false"),
    ("model=pretrained", "model.attention=flash_attention_2", "needs compute_dtype=bfloat16"),
    ("", "dataset.min_steps=5", "at most 4"),
    ("", "dataset.verifier_workers=-1", "between 0 and 1024"),
    ("", "dataset.verifier_timeout=0", "greater than 0"),
    ("dataset=math", "dataset.train.hub=nowhere", "must be OWNER/NAME"),
    ("dataset=math", "dataset.evaluation.hub=null", "path=null: must be a local folder or file"),
    ("dataset=math +dataset.train.filter.level='('", "seed=0", "level=(: must be a regular"),
    ("dataset=calculator", "dataset.max_turns=2", "must be greater than max_steps"),
    ("", "updates.mini_batches=17", "at most the 16 prompts"),
    ("buffer=replay", "buffer.reuse=16", "below batch_size=16"),
    ("proximal=moving_average", "proximal.decay=0.9", "ratio=proximal"),  # which nobody reads
    ("reference=swapped", "kl_every=0", "reference.swap_every=20"),  # which nobody reads
    ("pipeline=overlap", "pipeline.device=cpu", "must be a text like"),
)


@pytest.mark.parametrize(("choices", "line", "told"), RANGES, ids=lambda text: text[:60])
def test_a_value_out_of_range_names_its_key(choices, line, told):
    config = OmegaConf.merge(composed(*choices.split()), OmegaConf.from_dotlist([line]))
    if choices.startswith("model=pretrained"):
        config.model.path = "x"
    with pytest.raises(UserError) as refusal:
        schema.build(config, Experiment)
    key, message = line.partition("=")[0], str(refusal.value)
    assert told in message
    assert key.rpartition(".")[0].partition(".")[0] in message
    assert "\n" not in message


def test_absent_vllm_is_one_line_that_names_the_extra(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)  # as where it is not installed
    line = refused([*SMALL, "sampler=vllm"], monkeypatch, capfd)
    for part in ("sampler=vllm", "not installed", "extra vllm", "sampler=native"):
        assert part in line
    assert list(tmp_path.iterdir()) == []


GOOD = json.dumps({"question": "1 + 1?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"})
DATA = {
    "missing folder": (None, ["dataset.path=data", "no such folder"]),
    "missing file": ({"train.jsonl": GOOD}, ["dataset.path=data", "test.jsonl"]),
    "malformed line": ({"train.jsonl": GOOD + "\n{oops", "test.jsonl": GOOD}, ["line 2"]),
    "no answer in the solution": (
        {"train.jsonl": '{"question": "?", "answer": "who knows"}', "test.jsonl": GOOD}, ["####"],
    ),
    "not text": ({"train.jsonl": "\udcff\udcfe", "test.jsonl": GOOD}, ["train.jsonl"]),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_bad_data_is_one_line(name, tmp_path, monkeypatch, capfd):
    """Of a run and of its check."""
    monkeypatch.chdir(tmp_path)
    files, expected = DATA[name]
    if files is not None:
        (tmp_path / "data").mkdir()
    for file, content in (files or {}).items():
        (tmp_path / "data" / file).write_text(content, errors="surrogateescape")
    before = sorted(tmp_path.rglob("*"))
    for command in ([], ["check"]):
        words = [*command, "dataset=gsm8k", "dataset.path=data"]
        line = refused(words, monkeypatch, capfd)
        assert all(part in line for part in expected)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_another_experiment_is_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    settings = experiment(*SMALL, "run_dir=run")
    run(settings)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    line = refused([*SMALL, "run_dir=run", "clip.high=2.0"], monkeypatch, capfd)
    assert "run_dir=run" in line
    assert "clip.high is 0.2 there and 2.0 here" in line
    run(settings)
    assert "already finished" in capfd.readouterr().out
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_folder_in_use_is_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = refused([*SMALL, "run_dir=run"], monkeypatch, capfd)
    assert "another process is running it" in line


def test_an_error_of_ours_keeps_its_traceback_and_never_exits_0(tmp_path):
    """A run that fails half-way: traceback on stderr, the reason in status.json, not code 0."""
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys, rec_experiments.training.trainer as t\n"
        "def boom(*a, **k): raise RuntimeError('no luck')\n"
        "t.Trainer.update = boom\n"
        "sys.argv = ['rec_experiments', *sys.argv[1:]]\n"
        "from rec_experiments.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, script, *SMALL, "run_dir=run"],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode not in (0, 2)
    assert "Traceback" in done.stderr
    assert "no luck" in done.stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["reason"] == "RuntimeError: no luck"


def test_a_folder_of_another_release_is_told_apart(tmp_path, monkeypatch, capfd):
    """Release 12 named classes by `kind`."""
    config = resolve(*SMALL)
    config["clip"] = {"kind": "one_side", "low": 0.2, "high": 0.2}
    del config["updates"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    line = refused([*SMALL, f"run_dir={tmp_path}/run"], monkeypatch, capfd)
    assert "run of another version" in line
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["config.yaml"]
    with pytest.raises(UserError, match="clip: names no class, as in runs of release 12"):
        experiment_of(tmp_path / "run", [])
