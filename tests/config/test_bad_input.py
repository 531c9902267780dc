"""Bad input: one clear line that names the key, the value and what is allowed; exit code 2;
nothing written. Each case runs the real command line in an empty folder."""

import fcntl
import json
import os
import subprocess
import sys

import pytest
import yaml
from conftest import SMALL, command, refused, resolve

from rec_experiments.cli import train
from rec_experiments.cli.main import run_command

CASES = {
    # choices and keys
    "unknown preset": (["algo=foo"], ["algo=foo", "no such choice", "rec_ring"]),
    "misspelt preset": (["algo=grpoo"], ["algo=grpoo", "did you mean grpo? --help lists all"]),
    "a common name": (["lr=1e-5"], ["lr", "did you mean optimizer.learning_rate?"]),
    "unknown clip": (["clip=broad"], ["clip=broad", "none, one_side, reciprocal"]),
    "unknown schedule": (["sync=interval7"], ["sync=interval7", "did you mean interval"]),
    "unknown model": (["model=gpt9"], ["model=gpt9", "tiny"]),
    "unknown data set": (["dataset=mnist"], ["dataset=mnist", "arithmetic", "gsm8k"]),
    "choice of an older version": (["clip=wide"], ["clip=one_side clip.low=0.6 clip.high=2.0"]),
    "group of an older version": (["region=ring"], ["region: is now part of clip"]),
    "misspelt key": (["sync.intervall=3"], ["sync.intervall", "did you mean interval?"]),
    "misspelt top-level key": (["sede=3"], ["sede", "did you mean seed?"]),
    "misspelt group": (["algorithm=grpo"], ["algorithm", "did you mean algo?"]),
    "misspelt key deep down": (["model.warm_start.step=3"], ["warm_start.step", "steps"]),
    "key of another choice": (["clip.outer_low=0.6"], ["clip.outer_low", "allowed: high, "]),
    "appended key": (["+foo=3"], ["foo: is not a key"]),
    "appended key of a piece": (["+clip.foo=3"], ["clip.foo: is not a key", "high, kind, low"]),
    "number for a choice": (["sync=3"], ["sync=3: no such choice"]),
    "no equals sign": (["seed"], ["seed"]),
    "unbalanced brackets": (["optimizer.betas=[0.9"], ["optimizer.betas=[0.9: cannot be read"]),
    "missing mandatory value": (["model=pretrained"], ["model.path"]),
    "interpolation to nowhere": (["seed=${nowhere}"], ["nowhere"]),
    # types
    "word for an integer": (["steps=many"], ["steps", "many"]),
    "fraction for an integer": (["seed=0.5"], ["seed", "0.5"]),
    "word for a float": (["clip.low=tight"], ["clip.low", "tight"]),
    "number for a list": (["optimizer.betas=0.9"], ["optimizer.betas=0.9: "]),
    "list for a number": (["seed=[1,2]"], ["seed"]),
    "word for a truth value": (["shuffle=perhaps"], ["shuffle", "perhaps"]),
    "null for a number": (["steps=null"], ["steps"]),
    "unknown phase": (["sync.phase=lunar"], ["sync.phase", "lunar", "paper"]),
    # ranges
    "no steps": (["steps=0"], ["steps=0", "at least 1"]),
    "negative seed": (["seed=-1"], ["seed=-1", "at least 0"]),
    "group of one": (["group_size=1"], ["group_size=1", "at least 2"]),
    "no prompts": (["batch_size=0"], ["batch_size=0", "at least 1"]),
    "no micro-batch": (["micro_batch_size=0"], ["micro_batch_size=0", "at least 1"]),
    "no token in a micro-batch": (["micro_batch_tokens=0"], ["micro_batch_tokens=0", "at least 1"]),
    "lower bound above 1": (["clip.low=1.5"], ["clip.low=1.5", "between 0 and 1"]),
    "negative upper bound": (["clip.high=-0.1"], ["clip.high=-0.1", "at least 0"]),
    "bound is not a number": (["clip.high=nan"], ["clip.high=nan", "at least 0"]),
    "ring inside out": (["algo=rec_ring", "clip.low=0.7"], ["clip.outer_low=0.6", "low=0.7"]),
    "interval 0": (["sync.interval=0"], ["sync.interval=0", "at least 1"]),
    "negative offset": (["sync.offset=-1"], ["sync.offset=-1", "at least 0"]),
    "offline with an offset": (["sync=offline", "sync.offset=3"], ["sync.offset=3", "only 0"]),
    "learning rate 0": (["optimizer.learning_rate=0"], ["optimizer.learning_rate=0", "greater"]),
    "beta of 1": (["optimizer.betas=[0.9,1]"], ["optimizer.betas", "[0, 1)"]),
    "three betas": (["optimizer.betas=[0.9,0.9,0.9]"], ["optimizer.betas", "two numbers"]),
    "temperature 0": (["sampler.temperature=0"], ["sampler.temperature=0", "above 0"]),
    "negative temperature": (["sampler.eval_temperature=-1"], ["eval_temperature=-1"]),
    "weight temperature 0": (
        ["algo=red_weight", "data_weighting.temperature=0"],
        ["data_weighting.temperature=0", "greater than 0"],
    ),
    "negative tau": (["algo=opmd", "regularizer.tau=-1"], ["regularizer.tau=-1", "at least 0"]),
    "ddof 2": (["algo=grpo", "advantage.ddof=2"], ["advantage.ddof=2", "0 (population) or 1"]),
    "odd head size": (["model.heads=5"], ["model.heads=5", "must divide hidden_size=64"]),
    "modulus of two digits": (["dataset.modulus=11"], ["dataset.modulus=11", "between 2 and 10"]),
    "more chains than exist": (
        ["dataset.max_steps=2", "dataset.train_problems=9999"], ["dataset.train_problems=9999"],
    ),
    "overwritten kind": (["clip.kind=ring"], ["clip.kind=ring", "is set by"]),
    "unknown device": (["device=abacus"], ["device=abacus", "auto, cpu or cuda"]),
    "no ranks": (["ranks=0"], ["ranks=0", "at least 1"]),
    "more ranks than groups": (["ranks=5"], ["ranks=5", "at most the 4 prompts", "batch_size=4"]),
    "ranks without torchrun": (
        ["ranks=2"],
        ["ranks=2", "processes that were started, 1;", "torchrun --nproc-per-node 2 -m rec_exp"],
    ),
    "no correction at all": (
        ["correction=truncated", "correction.cap=0.5"],
        ["correction.cap=0.5", "at least 1"],
    ),
    "greedy rollouts of vLLM": (
        ["sampler=vllm", "sampler.temperature=0"], ["sampler.temperature=0", "at least 0.01"],
    ),
    "almost greedy evaluation": (
        ["sampler=vllm", "sampler.eval_temperature=0.001"], ["eval_temperature=0.001", "0.01"],
    ),
    "no device for vLLM": (
        ["sampler=vllm", "sampler.tensor_parallel_size=0"],
        ["tensor_parallel_size=0", "at least 1"],
    ),
    "more than the memory": (
        ["sampler=vllm", "sampler.gpu_memory_utilization=1.5"],
        ["gpu_memory_utilization=1.5", "at most 1"],
    ),
    "no cache for vLLM": (
        ["sampler=vllm", "sampler.kv_cache_memory_bytes=0"], ["kv_cache_memory_bytes=0", "null"],
    ),
    "cut distribution": (["sampler=vllm", "sampler.top_p=0.9"], ["sampler.top_p", "allowed: "]),
    "absent device": (["device=cuda"], ["device=cuda", "no CUDA device"]),
    "unknown tracking mode": (
        ["tracking=wandb", "tracking.mode=loud"], ["tracking.mode=loud", "online, offline"],
    ),
    # what the keys point to
    "prompt longer than its limit": (["dataset.max_prompt_tokens=6"], ["max_prompt_tokens=6"]),
    "response longer than the context": (
        ["dataset.max_response_tokens=5000"], ["max_response_tokens=5000", "context of 4096"],
    ),
    "model not there": (
        ["model=pretrained", "model.path=./no-such-model"], ["model.path=./no-such-model"],
    ),
    "unknown dtype": (
        ["model=pretrained", "model.path=x", "model.dtype=float7"], ["model.dtype=float7"],
    ),
    "arithmetic that needs a scaled loss": (
        ["model=pretrained", "model.path=x", "model.compute_dtype=float16"],
        ["model.compute_dtype=float16", "must be one of float32, bfloat16"],
    ),
    "unknown attention": (
        ["model=pretrained", "model.path=x", "model.attention=spda"],
        ["model.attention=spda", "must be eager, sdpa, flex_attention, flash_attention_2"],
    ),
    "flash attention in float32": (
        ["model=pretrained", "model.path=x", "model.attention=flash_attention_2"],
        ["model.attention=flash_attention_2", "needs compute_dtype=bfloat16"],
    ),
    "nan shift": (["algo=asymre", "advantage.shift=nan"], ["advantage.shift=nan", "finite"]),
    "nan epsilon": (
        ["algo=grpo", "advantage.epsilon=nan"], ["advantage.epsilon=nan", "at least 0"],
    ),
    "endless penalty": (
        ["truncation=penalise", "truncation.penalty=inf"], ["truncation.penalty=inf", "finite"],
    ),
    "endless tau": (["algo=opmd", "regularizer.tau=inf"], ["regularizer.tau=inf", "finite"]),
    "endless rate": (
        ["optimizer.learning_rate=inf"], ["optimizer.learning_rate=inf", "finite"],
    ),
    "nan decay": (["optimizer.weight_decay=nan"], ["optimizer.weight_decay=nan", "at least 0"]),
    "seed of 65 bits": (["seed=18446744073709551616"], ["seed=18446744073709551616", "2^63"]),
    "no mini-batch": (["updates.mini_batches=0"], ["updates.mini_batches=0", "at least 1"]),
    "more mini-batches than groups": (
        ["updates.mini_batches=5"], ["updates.mini_batches=5", "at most the 4 prompts"],
    ),
    "all replayed": (
        ["buffer=replay", "buffer.reuse=4"], ["buffer.reuse=4", "below batch_size=4"],
    ),
    "negative redraws": (["buffer.redraws=-1"], ["buffer.redraws=-1", "at least 0"]),
    "no fast step": (["updates=slow_fast", "updates.epochs=1"], ["updates.epochs=1", "at least 2"]),
    "beyond the fast steps": (
        ["updates=slow_fast", "updates.alpha=1.1"], ["updates.alpha=1.1", "between 0 and 1"],
    ),
    "nan alpha": (["algo=sfpo", "updates.alpha=nan"], ["updates.alpha=nan", "between 0 and 1"]),
    "a window of one": (["algo=sfpo", "updates.window=1"], ["updates.window=1", "at least 2"]),
    "a threshold of 0": (
        ["algo=sfpo", "updates.threshold=0"], ["updates.threshold=0", "greater than 0, or null"],
    ),
    "an alpha of nothing": (["updates.alpha=0.5"], ["updates.alpha", "epochs"]),
    "average that never moves": (
        ["ratio=proximal", "proximal=moving_average", "proximal.decay=1"],
        ["proximal.decay=1", "below 1"],
    ),
    "proximal policy that nobody reads": (
        ["proximal=moving_average"], ["proximal=moving_average", "ratio=proximal"],
    ),
    "reference that nobody reads": (
        ["reference=swapped", "kl_every=0"], ["reference.swap_every=20", "kl_every=0"],
    ),
    "swap every 0": (["reference.swap_every=0"], ["reference.swap_every=0", "at least 1"]),
    "band upside down": (
        ["correction=band", "correction.low=2"], ["correction.low=2", "between 0 and 1"],
    ),
    "nan cap": (["correction=truncated", "correction.cap=nan"], ["correction.cap=nan: must"]),
    "a share over 1": (["reward=noise", "reward.share=2"], ["reward.share=2", "between 0 and 1"]),
    "a class variable": (
        ["+updates.needs=3"], ["updates.needs", "allowed: epochs, kind, mini_batches, shuffle"],
    ),
    "a batch beyond memory": (
        ["batch_size=1000000000000"], ["batch_size=1000000000000", "group_size", "GB"],
    ),
    "groups beyond memory": (["group_size=1000000000000"], ["batch_size=4", "group_size", "GB"]),
    "an evaluation beyond memory": (
        ["eval_samples=1000000000000"], ["eval_samples=1000000000000", "eval_problems", "GB"],
    ),
    "an endless offset": (["sync.offset=1000000000000"], ["sync.offset=", "at most 1000000"]),
    "an endless interval": (["sync.interval=1000000000000"], ["sync.interval=", "at most 1000000"]),
    "a million threads": (["threads=1000000"], ["threads=1000000", "at most 1024"]),
    "a million workers": (
        ["dataset=gsm8k", "dataset.path=x", "dataset.verifier_workers=1000000"],
        ["dataset.verifier_workers=1000000", "at most 1024"],
    ),
    "endless patience": (
        ["dataset=gsm8k", "dataset.path=x", "dataset.verifier_timeout=inf"],
        ["dataset.verifier_timeout=inf", "finite"],
    ),
    "an endless bonus": (
        ["dataset=gsm8k", "dataset.path=x", "dataset.format_bonus=inf"],
        ["dataset.format_bonus=inf", "finite"],
    ),
    "warm start with an endless rate": (
        ["model.warm_start.learning_rate=inf"], ["model.warm_start.learning_rate=", "finite"],
    ),
    "warm start with a seed of 65 bits": (
        ["model.warm_start.seed=18446744073709551616"], ["model.warm_start.seed=", "below"],
    ),
    "endless initial weights": (["model.init_std=inf"], ["model.init_std=inf", "finite"]),
    "run folder inside a file": (["run_dir=/dev/null/run"], ["run_dir=/dev/null/run"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_and_leaves_nothing(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    arguments, expected = CASES[name]
    small = [] if {"model=pretrained", "dataset=gsm8k"} & {*arguments} else SMALL
    line = refused([*small, *arguments], monkeypatch, capfd)
    for part in expected:
        assert part in line
    assert list(tmp_path.iterdir()) == []


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
    done = command(*SMALL, "run_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    line = refused([*SMALL, "run_dir=run", "clip.high=2.0"], monkeypatch, capfd)
    assert "run_dir=run" in line
    assert "clip.high is 0.2 there and 2.0 here" in line
    again = command(*SMALL, "run_dir=run", cwd=tmp_path)
    assert again.returncode == 0
    assert "already finished" in again.stdout
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
