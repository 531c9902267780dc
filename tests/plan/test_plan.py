"""What a run needs, before it starts.

1. Each setting of the paper fits its layouts with 5 GB of 80 to spare, and takes what is on file.
2. A run that does not fit is refused in one line that says what would.
3. The sampler's memory: a sleeping one leaves, what vLLM asks for must be free, and a cache without
   room for one response is refused.
4. A wrong argument is one line.
"""

import re
from pathlib import Path

import pytest
import yaml
from conftest import experiment, refused
from planned import LAYOUTS, gigabytes, planned
from test_memory import GUARDED
from transformers import Gemma3Config, GPT2Config

from rec_experiments.cli import plan as command
from rec_experiments.cli.main import run_command
from rec_experiments.common.errors import UserError
from rec_experiments.config import plugins
from rec_experiments.config.plugins import CONF
from rec_experiments.plan import at, budget, constants, memory, usual
from rec_experiments.plan.sampler import SamplerMemory

VALUES = usual()
GOLDEN = Path(__file__).parents[1] / "golden" / "plan.yaml"
USUAL = ("gsm8k_1x80gb", "guru_8x80gb")  # the smallest layout and the largest


@pytest.mark.parametrize(
    "name",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.long) for name in LAYOUTS],
)
def test_a_setting_of_the_paper_fits_its_layouts(name):
    found = planned(name)
    assert found.gpus == int(name.partition("_")[2][0])
    assert found.fits, found.worst()
    for place, phases in yaml.safe_load(GOLDEN.read_text())[name].items():
        assert gigabytes(found)[place] == pytest.approx(phases, rel=0.01, abs=0.02), place


# What docs/scaling.md offers for a GPU of 24 GB, and a change of each that takes too much.
OFFERED = re.findall(
    r"^\| one of 24 GB, .* \| `python -m rec_experiments (.*)` \|$",
    (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(),
    re.MULTILINE,
)
TOO_MUCH = {
    "paper/gsm8k_05b": "model.gradient_checkpointing=false",
    "adapter=lora": "sampler.sleep=false",
    "optimizer=adamw_8bit": "optimizer=adamw",
}


@pytest.mark.parametrize(
    "words", [OFFERED[0], *(pytest.param(each, marks=pytest.mark.long) for each in OFFERED[1:])]
)
def test_what_is_offered_for_24_gigabytes_leaves_two(words):
    found = budget.plan(experiment(*words.split()), "rtx-4090", VALUES)
    assert max(found.memory[budget.TRAINS].values()) < 22e9
    assert found.fits
    [change] = [change for part, change in TOO_MUCH.items() if part in words]
    key = change.partition("=")[0]
    others = [word for word in words.split() if word.partition("=")[0] != key]
    found = budget.plan(experiment(*others, change), "rtx-4090", VALUES)
    assert max(found.memory[budget.TRAINS].values()) > 22e9
    assert not found.fits


def test_a_configuration_with_names_of_its_own(tmp_path):
    """GPT-2's n_layer."""
    GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=512).save_pretrained(tmp_path / "gpt2")
    exp = experiment(*GUARDED, f"model.path={tmp_path}/gpt2")
    config = budget.configuration(exp)
    assert config.num_hidden_layers == 3
    few, _ = memory.model_bytes(exp, memory.with_layers(config, 2))
    assert memory.model_bytes(exp, config)[0] - few == pytest.approx(12 * 64 * 64 * 4, rel=0.03)
    Gemma3Config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model\.path=.*gemma3 has no num_hidden_layers"):
        budget.configuration(experiment("model=pretrained", f"model.path={tmp_path}"))


def test_a_sampler_that_sleeps_leaves_the_device():
    asleep, beside, native = (
        budget.sampler_memory(experiment("setting=paper/gsm8k", *extra), 6.2e9, 80e9, VALUES)
        for extra in ((), ("gpus=2x80gb",), ("sampler=native",))
    )
    assert asleep == SamplerMemory(3.1e9, 12 * 2**30, 3e9, 1e9, asked=0.3 * 80e9)
    assert beside.drawing == pytest.approx(0.85 * 80e9)
    assert beside.asleep is None
    assert native.weights == 6.2e9


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("gpu_memory_utilization=0.05", r"=0\.05: leaves 0\.00 GB for keys and values; a prompt"),
        ("kv_cache_memory_bytes=1000", r"=1000: leaves 0\.00 GB .* of 3072 tokens need 0\.09 GB"),
    ],
)
def test_a_cache_without_room_is_one_line(override, line, monkeypatch):
    monkeypatch.setattr(budget, "training_memory", lambda *_: {})
    exp = experiment("setting=paper/gsm8k", "gpus=2x80gb", f"sampler.{override}")
    with pytest.raises(UserError, match=rf"sampler\.{override.partition('=')[0]}{line}"):
        budget.plan(exp, "h100-80", VALUES)


def test_the_hours_of_a_sweep_are_those_of_the_plan(monkeypatch):
    """With room for evaluations. Responses have the length that is assumed for their setting."""
    nothing = dict.fromkeys(("start", "sample"), memory.Use(0.0, 0.0))
    monkeypatch.setattr(budget, "training_memory", lambda *_: nothing)
    given = yaml.safe_load((plugins.CONF / "scale" / "paper.yaml").read_text())["hours"]
    assert {f"paper/{name}" for name in given} == set(constants()["response_tokens"])
    for name, said in given.items():
        setting = f"setting=paper/{name}"
        found = budget.plan(experiment(setting), "h100-80", command.assumed([setting]))
        hours = found.hours(found.cost)
        assert hours <= said <= 1.25 * hours, name


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--gpu=a100"], "--gpu=a100: must be one of h100-80, a100-80, h200-141, a100-40"),
        (["margin_gb=-1"], "margin_gb=-1: must be a number of at least 0, and finite"),
        (["padding=1"], "padding=1: must be a number of at least 0, and below 1"),
        (["setting=mini/gsm8k"], "model: a plan needs a model of transformers"),
        (
            ["setting=paper/gsm8k", "dataset.max_response_tokens=1000000000"],
            "dataset.max_response_tokens=1000000000: must be below the model's context of 32768",
        ),
    ],
)
def test_bad_input_is_one_line(arguments, line, monkeypatch, capfd):
    said = refused(["plan", *arguments], monkeypatch, capfd)
    assert line in said


def test_a_time_lies_in_its_interval():
    """Unless all that it depends on was given."""
    found = planned(USUAL[0])
    for name, seconds in found.cost.seconds.items():
        assert found.quick.seconds[name] < seconds < found.slow.seconds[name], name
    given = VALUES | {"stragglers": 3.0}
    assert at("slow", given)["stragglers"] == 3.0
    assert at("slow", given)["padding"] > VALUES["padding"] > at("quick", given)["padding"]


def test_every_constant_names_its_source(capsys):
    run_command("plan", "--sources")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(VALUES)
    assert all(re.search(r": .+\. Source: .+", line) for line in lines)


@pytest.mark.long
def test_a_run_that_does_not_fit_is_refused_with_what_would(capsys):
    """7B does not fit one GPU; the plan is printed all the same."""
    with pytest.raises(SystemExit) as stopped:
        run_command("plan", "setting=paper/guru", "gpus=1x80gb")
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert "does not fit" in out
    assert len(err.splitlines()) == 1
    assert "gpus=8x80gb" in err


def test_the_launcher_asks_for_the_host_memory_of_the_plan():
    launcher = yaml.safe_load((CONF / "hydra/launcher/slurm.yaml").read_text())
    assert launcher["mem"] == f"{VALUES['host_gb_per_gpu']:g}GB"
