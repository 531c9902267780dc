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
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from rec_experiments.cli import train
from rec_experiments.cli.main import run_command
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.errors import UserError
from rec_experiments.runs.run import run

# Command line, and what the line on stderr says.
CASES = (
    # choices and keys
    ("algo=nothing", "algo=nothing: no such choice; allowed: a3po, "),
    ("algo=grpoo", "algo=grpoo: no such choice; did you mean grpo? --help lists all"),
    ("lr=1e-5", "did you mean optimizer.learning_rate?"),
    ("clip=wide", "clip=one_side clip.low=0.6 clip.high=2.0"),  # of an older version
    ("region=ring", "region: is now part of clip"),
    (
        "sync.intervall=3",
        "no such key; did you mean sync.interval?",
    ),
    ("clip.hi=2", "clip.hi: no such key; did you mean clip.high?"),
    ("verifier_timeout=nan", "did you mean dataset.verifier_timeout?"),
    ("learning_rate=1e-5", "did you mean optimizer.learning_rate?"),
    ("algorithm=grpo", "did you mean algo?"),
    ("model.warm_start.step=3", "did you mean model.warm_start.steps?"),
    ("clip.outer_low=0.6", "allowed: high, kind, low"),
    ("+foo=3", "foo: is not a key"),
    ("+clip.foo=3", "clip.foo: is not a key of the experiment; allowed: high, kind, low"),
    ("+updates.needs=3", "updates.needs: is not a key of the experiment; allowed: epochs, kind"),
    ("sync=3", "sync=3: no such choice"),
    ("scale=paper", "scale: can be chosen only with a sweep, as in -m sweep=fig3"),
    (
        "-m sweep=fig1",
        "sweep=fig1: this figure is computed without runs: python -m rec_experiments figures fig1",
    ),
    ("sweep=fig3", "sweep=fig3: starts all runs of a figure, so it needs -m"),
    ("seed", "seed"),
    ("optimizer.betas=[0.9", "optimizer.betas=[0.9: cannot be read"),
    ("run_dir=a~b", "such a value needs quotes: 'run_dir=\"a~b\"'"),
    ("model=pretrained", "model.path"),
    ("seed=${nowhere}", "nowhere"),
    # types
    ("steps=many", "steps=many: must be a whole number"),
    ("seed=0.5", "seed=0.5: must be a whole number"),
    ("clip.low=tight", "clip.low=tight: must be a number"),
    ("optimizer.betas=0.9", "optimizer.betas=0.9: "),
    ("seed=[1,2]", "seed=[1,2]: must be a whole number"),
    ("shuffle=perhaps", "shuffle=perhaps: must be true or false"),
    ("steps=null", "steps=null: must be a value, not null"),
    ("sync.phase=lunar", "Invalid value 'lunar', expected one of [paper, "),
    # what a run needs
    ("steps=0", "steps=0: must be at least 1"),
    ("clip.kind=ring", "clip.kind=ring: is set by"),
    ("dataset.max_steps=2 dataset.train_problems=9999", "dataset.train_problems=9999"),
    ("ranks=2", "ranks=2: must be the number of processes that were started, 1;"),
    ("device=cuda", "device=cuda: torch "),
    ("dataset.max_prompt_tokens=6", "dataset.max_prompt_tokens=6: a prompt has "),
    ("dataset.max_response_tokens=5000", "exceeds the model's context of 4096 tokens"),
    ("model=pretrained model.path=./no-such-model", "model.path=./no-such-model: no such folder"),
    ("batch_size=1000000000000", "batch_size=1000000000000: "),
    ("group_size=1000000000000", "batch_size=4: "),
    ("eval_samples=1000000000000", "eval_samples=1000000000000: "),
    ("run_dir=/dev/null/run", "run_dir=/dev/null/run"),
)


@pytest.mark.parametrize(("words", "told"), CASES, ids=[words for words, _ in CASES])
def test_bad_input_is_one_line_and_leaves_nothing(words, told, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    small = [] if "model=pretrained" in words else SMALL
    assert told in refused([*small, *words.split(" ")], monkeypatch, capfd)
    assert list(tmp_path.iterdir()) == []


# Choices of groups, KEY=VALUE out of range, and why.
RANGES = (
    ("", "seed=-1", "at least 0"),
    ("", "seed=18446744073709551616", "below 2^63"),
    ("", "group_size=1", "at least 2"),
    ("", "batch_size=0", "at least 1"),
    ("", "micro_batch_size=0", "at least 1"),
    ("", "micro_batch_tokens=0", "at least 1"),
    ("", "threads=1000000", "between 1 and 1024"),
    ("", "device=abacus", "must be one of auto, cpu, cuda"),
    ("", "ranks=0", "at least 1"),
    ("", "ranks=17", "at most the 16 prompts"),
    ("", "clip.low=1.5", "between 0 and 1"),
    ("", "clip.high=-0.1", "at least 0"),
    ("", "clip.high=nan", "at least 0"),
    ("algo=rec_ring", "clip.low=0.7", "outer_low=0.6"),
    ("", "sync.interval=0", "at least 1"),
    ("", "sync.interval=1000000000000", "at most 1e+06"),
    ("", "sync.offset=-1", "at least 0"),
    ("", "sync.offset=1000000000000", "at most 1e+06"),
    ("sync=offline", "sync.offset=3", "must be 0"),
    ("", "optimizer.learning_rate=0", "greater than 0"),
    ("", "optimizer.learning_rate=inf", "finite"),
    ("", "optimizer.weight_decay=nan", "at least 0"),
    ("", "optimizer.betas=[0.9,1]", "[0, 1)"),
    ("", "optimizer.betas=[0.9,0.9,0.9]", "two numbers"),
    ("", "sampler.temperature=0", "at least 0.001"),
    ("", "sampler.temperature=1e-300", "at least 0.001"),
    ("", "sampler.eval_temperature=-1", "at least 0"),
    ("sampler=vllm", "sampler.temperature=0", "at least 0.01"),
    ("sampler=vllm", "sampler.eval_temperature=0.001", "0.01"),
    ("sampler=vllm", "sampler.tensor_parallel_size=0", "at least 1"),
    ("sampler=vllm", "sampler.gpu_memory_utilization=1.5", "at most 1"),
    ("sampler=vllm", "sampler.kv_cache_memory_bytes=0", "null"),
    ("algo=red_weight", "data_weighting.temperature=0", "greater than 0"),
    ("algo=opmd", "regularizer.tau=-1", "at least 0"),
    ("algo=opmd", "regularizer.tau=inf", "finite"),
    ("algo=grpo", "advantage.ddof=2", "0 (population) or 1"),
    ("algo=grpo", "advantage.epsilon=nan", "at least 0"),
    ("algo=asymre", "advantage.shift=nan", "finite"),
    ("algo=max_at_k", "advantage.k=9", "at most group_size=8"),
    ("truncation=penalise", "truncation.penalty=inf", "finite"),
    ("correction=truncated", "correction.cap=0.5", "at least 1"),
    ("correction=truncated", "correction.cap=nan", "must"),
    ("correction=band", "correction.low=2", "between 0 and 1"),
    ("correction=k3", "correction.high=-1", "at least 0"),
    ("correction=geometric", "correction.measure=sum", "must be one of token"),
    ("correction=kpop", "correction.low=0.5", "between 0 and 0"),
    ("weight=bounded", "weight.floor=-0.1", "at least 0"),
    ("weight=bounded", "weight.floor=1.3", "at most cap=1.2"),
    ("weight=capped", "weight.cap=0", "greater than 0"),
    ("weight=soft_gate", "weight.tau_negative=inf", "greater than 0"),
    ("weight=flipped", "weight.cap=0.5", "at least 1"),
    ("weight=soft_variation", "weight.epsilon=0", "greater than 0"),
    ("clip=balanced", "clip.lower_start=0.95", "between 0 and lower_end"),
    ("clip=balanced", "clip.upper_step=0", "at least 1e-09"),
    ("clip=near_negatives", "clip.drift=-1", "at least 0"),
    ("clip=prefix_budget", "clip.last_weight=0", "greater than 0"),
    ("clip=covariance", "clip.above=6", "at most 5=below=5"),
    ("clip=veto", "clip.trigger=2", "between 0 and 1"),
    ("clip=isometric", "clip.ceiling=0.5", "at least 1"),
    ("regularizer=covariance", "regularizer.fraction=2", "between 0 and 1"),
    ("algo=max_at_k", "advantage.k=0", "at least 1"),
    ("reward=noise", "reward.share=2", "between 0 and 1"),
    ("", "model.heads=5", "must divide hidden_size=64"),
    ("", "model.init_std=inf", "finite"),
    ("", "model.warm_start.learning_rate=inf", "finite"),
    ("", "model.warm_start.seed=18446744073709551616", "below"),
    ("model=pretrained", "model.dtype=float7", "must be one of float32, bfloat16"),
    ("model=pretrained", "model.compute_dtype=float16", "must be one of float32, bfloat16"),
    (
        "model=pretrained",
        "model.attention=spda",
        "must be one of eager, sdpa, flex_attention, flash",
    ),
    ("model=pretrained", "model.attention=flash_attention_2", "needs compute_dtype=bfloat16"),
    ("", "dataset.modulus=11", "between 2 and 10"),
    ("", "dataset.verifier_workers=-1", "between 0 and 1024"),
    ("", "dataset.verifier_timeout=nan", "finite"),
    ("dataset=gsm8k", "dataset.verifier_workers=1000000", "between 0 and 1024"),
    ("dataset=gsm8k", "dataset.verifier_timeout=inf", "finite"),
    ("dataset=gsm8k", "dataset.format_bonus=inf", "finite"),
    ("", "updates.mini_batches=0", "at least 1"),
    ("", "updates.mini_batches=17", "at most the 16 prompts"),
    ("updates=slow_fast", "updates.epochs=1", "at least 2"),
    ("updates=slow_fast", "updates.alpha=1.1", "between 0 and 1"),
    ("updates=slow_fast", "updates.alpha=nan", "between 0 and 1"),
    ("updates=slow_fast", "updates.window=1", "at least 2"),
    ("updates=slow_fast", "updates.threshold=0", "greater than 0, or null"),
    ("buffer=replay", "buffer.reuse=16", "below batch_size=16"),
    ("", "buffer.redraws=-1", "at least 0"),
    ("ratio=proximal proximal=moving_average", "proximal.decay=1", "below 1"),
    ("proximal=moving_average", "proximal.decay=0.9", "ratio=proximal"),  # which nobody reads
    ("reference=swapped", "kl_every=0", "reference.swap_every=20"),  # which nobody reads
    ("", "reference.swap_every=0", "at least 1"),
    ("tracking=wandb", "tracking.mode=loud", "online, offline"),
    ("tracking=trackio", f"tracking.project={201 * 'p'}", "1 to 200 bytes"),
)


@pytest.mark.parametrize(("choices", "line", "told"), RANGES, ids=lambda text: text[:60])
def test_a_value_out_of_range_names_its_key(choices, line, told):
    config = OmegaConf.merge(composed(*choices.split()), OmegaConf.from_dotlist([line]))
    if choices == "model=pretrained":
        config.model.path = "x"
    if choices == "dataset=gsm8k":
        config.dataset.path = "x"
    with pytest.raises(UserError) as refusal:
        schema.build(config, Experiment)
    key, message = line.partition("=")[0], str(refusal.value)
    assert told in message
    assert key.rpartition(".")[0].partition(".")[0] in message
    assert "\n" not in message


def test_the_home_folder_is_known_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["rec_experiments", "output_dir=~/runs", "--cfg", "job"])
    GlobalHydra.instance().clear()
    train.main()
    assert f"output_dir: {tmp_path}/runs\n" in capsys.readouterr().out


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
    "missing field": ({"train.jsonl": '{"question": "?"}', "test.jsonl": GOOD}, ["answer"]),
    "field of another type": (
        {"train.jsonl": '{"question": 3, "answer": "#### 1"}', "test.jsonl": GOOD}, ["question"],
    ),
    "no answer in the solution": (
        {"train.jsonl": '{"question": "?", "answer": "who knows"}', "test.jsonl": GOOD}, ["####"],
    ),
    "empty file": ({"train.jsonl": "", "test.jsonl": GOOD}, ["train.jsonl"]),
    "not text": ({"train.jsonl": b"\xff\xfe\x00", "test.jsonl": GOOD}, ["train.jsonl"]),
}  # fmt: skip


@pytest.mark.parametrize("entry", [train.main, lambda: run_command("check_data", *sys.argv[1:])])
@pytest.mark.parametrize("name", DATA)
def test_bad_data_is_one_line(name, entry, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    files, expected = DATA[name]
    if files is not None:
        (tmp_path / "data").mkdir()
    for file, content in (files or {}).items():
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "data" / file).write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    line = refused(["dataset=gsm8k", "dataset.path=data"], monkeypatch, capfd, entry)
    for part in expected:
        assert part in line
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
        "from rec_experiments.cli.train import main\n"
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


def test_a_folder_of_another_version_is_told_apart(tmp_path, monkeypatch, capfd):
    """Version 0.1 had `shaping` and `mismatch_cap`, and no `updates`."""
    config = resolve(*SMALL)
    config["shaping"], config["mismatch_cap"] = config.pop("data_weighting"), None
    del config["updates"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    line = refused([*SMALL, f"run_dir={tmp_path}/run"], monkeypatch, capfd)
    assert "run of another version" in line
    assert "data_weighting, mismatch_cap, shaping, updates" in line
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["config.yaml"]
