"""What a run needs, before it runs.

1. Each setting of the paper fits each of its layouts with 5 GB of 80 to spare, counted from the
   code that trains, and takes what is on file; one more copy of the weights does not fit.
2. The count is what tensors with values take; layers beyond those that are run follow from them.
3. Weights that are split among ranks count once each.
4. A run that does not fit is refused in one line that says what would.
5. More tokens in a pass than a mini-batch has change nothing, and more chunks of them are not run.
"""

import pytest
import torch
from conftest import experiment, refused
from omegaconf import OmegaConf
from planned import LAYOUTS, gigabytes, planned
from torch import nn
from transformers import Gemma3Config, GPT2Config, LlamaConfig
from update_golden import GOLDEN

from rec_experiments.cli.main import run_command
from rec_experiments.distributed import World
from rec_experiments.errors import UserError
from rec_experiments.plan import budget, memory, passes
from rec_experiments.plan.assumed import assumptions
from rec_experiments.plan.meter import Meter
from rec_experiments.plan.sampler import SamplerMemory
from rec_experiments.policy.batching import Limits

VALUES = assumptions()["values"]
SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
GUARDED = ("model=pretrained", "model.path=x", "micro_batch_tokens=4096", "micro_batch_size=null")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_setting_of_the_paper_fits_its_layouts(name):
    found = planned(name)
    assert found.gpus == int(name.partition("_")[2][0])
    for place in (budget.TRAINS, budget.DRAWS):
        for phase, used in found.memory.get(place, {}).items():
            assert used < 75e9, (place, phase, used / 1e9)
    assert found.fits, found.worst()


@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_of_each_phase_is_the_one_on_file(name):
    """Most layouts have room to spare, in which something held too long would not show."""
    golden = OmegaConf.to_container(OmegaConf.load(GOLDEN / "plan.yaml"))[name]
    found = gigabytes(planned(name))
    assert found.keys() == golden.keys()
    for place, phases in golden.items():
        assert found[place] == pytest.approx(phases, rel=0.01, abs=0.02), place


def test_one_more_copy_of_the_weights_does_not_fit(monkeypatch):
    """As a copy for a metric that stays on the device while the gradient is computed."""
    begin = memory.begin_gradient

    def holding(model):
        begin(model)
        model.copy = [parameter.detach().clone() for parameter in model.parameters()]

    before = planned("toolace_1x80gb").memory[budget.TRAINS]["train"]
    monkeypatch.setattr(memory, "begin_gradient", holding)
    found = budget.plan(experiment(*LAYOUTS["toolace_1x80gb"]), "h100-80", VALUES)
    more = found.memory[budget.TRAINS]["train"] - before
    assert more == pytest.approx(3.21e9 * 4 * (1 + VALUES["fragmentation"]), rel=0.01)
    assert not found.fits


def test_layers_beyond_those_that_are_run_follow_from_them(monkeypatch):
    exp = experiment(*GUARDED)
    followed = memory.training_memory(exp, SMALL, 100)
    monkeypatch.setattr(memory, "LAYERS", (8, 9))
    counted = memory.training_memory(exp, SMALL, 100)
    for phase, use in followed.items():
        assert use.device == pytest.approx(counted[phase].device, rel=1e-3), phase
        assert use.host == pytest.approx(counted[phase].host, rel=1e-3), phase


@pytest.mark.parametrize("kl", [0, 1])
def test_the_count_is_what_tensors_with_values_take(kl):
    """With passes so short that a copy of the weights would show."""
    exp = experiment(*GUARDED, "micro_batch_tokens=64", f"kl_every={kl}")
    shape = SMALL | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    counted = memory._counted(exp, shape, 100, memory.DEVICE)
    batch = passes.batch_of(exp, passes.full_pass(exp, 100))
    with Meter() as meter:
        taken = memory.Phases(exp, World(), meter).run(memory.model_of(exp, shape), batch)
    for phase, use in taken.items():
        assert counted[phase].device == pytest.approx(use.device, rel=0.03), phase


@pytest.mark.parametrize(
    ("extra", "rows"),
    [
        ((), 5 * 4),
        (("updates.mini_batches=2",), 3 * 4),
        (("ranks=3",), 7),
        (("micro_batch_size=6",), 6),
    ],
)
def test_a_pass_has_at_most_the_rows_of_a_mini_batch(extra, rows):
    several = (*GUARDED, "batch_size=5", "group_size=4", *extra)
    for tokens in ("1000000000000", "null"):
        found = experiment(*several, f"micro_batch_tokens={tokens}")
        assert passes.pass_of(found, 100)[0] == rows
        assert len(passes.full_pass(found, 100).prompts) == rows


@pytest.mark.parametrize("tokens", ["1000000000000", "null"])
def test_what_would_fit_is_looked_for_among_passes_that_differ(tokens):
    """512 rows can be halved nine times, however many tokens are allowed."""
    rows = (f"micro_batch_tokens={tokens}", "batch_size=64", "group_size=8")
    found = [*budget.alternatives(experiment(*GUARDED, *rows), "8x80gb")]
    longest = experiment(*GUARDED).dataset
    length = longest.max_prompt_tokens + longest.max_response_tokens
    assert found == [[f"micro_batch_tokens={length << n}"] for n in reversed(range(9))]


def test_longer_passes_are_counted_with_as_many_operations(monkeypatch):
    """Of chunks of 4,096 tokens and more; the peak is that of all of them."""
    ran, dispatch = [], Meter.__torch_dispatch__

    def counting(meter, *call, **named):
        ran[-1] += 1
        return dispatch(meter, *call, **named)

    monkeypatch.setattr(Meter, "__torch_dispatch__", counting)
    monkeypatch.setattr(memory.head, "LOGITS_AT_ONCE", 4096 * SMALL["vocab_size"])
    several = ("batch_size=64", "group_size=8", "dataset.max_response_tokens=1024")
    for tokens in (32_768, 131_072):
        ran.append(0)
        exp = experiment(*GUARDED, *several, f"micro_batch_tokens={tokens}", "kl_every=0")
        found = memory.training_memory(exp, SMALL, 100)
    assert ran[0] == ran[1] > 1000
    ran.append(0)
    monkeypatch.setattr(memory, "few_chunks", lambda chunks: chunks)
    every = memory.training_memory(exp, SMALL, 100)
    assert ran[2] > ran[1] + 100
    assert found["train"].device == pytest.approx(every["train"].device, rel=1e-6)


def test_what_is_held_is_weights_gradient_moments_reference_and_passes():
    """The parts of the count that a pencil gives."""
    exp = experiment(*GUARDED, "kl_every=1")
    found = memory.training_memory(exp, SMALL, 100)
    weights = memory.model_bytes(exp, SMALL)
    assert found["sample"].device == pytest.approx(3 * weights, rel=0.02)  # and two moments
    assert found["sample"].host == pytest.approx(2 * weights, rel=0.02)  # reference, and held
    assert found["train"].device > 5 * weights  # and gradient, and the reference at hand
    without = memory.training_memory(experiment(*GUARDED, "kl_every=0"), SMALL, 100)
    assert found["train"].device > without["train"].device + weights  # and the reference's pass
    assert without["sample"].host == pytest.approx(weights, rel=0.02)


def test_the_weights_at_the_start_of_a_batch_wait_on_the_host():
    weights = memory.model_bytes(experiment(*GUARDED), SMALL)
    plain, kept = (
        memory.training_memory(experiment(*GUARDED, "kl_every=0", f"updates={rule}"), SMALL, 100)
        for rule in ("twice", "slow_fast")
    )
    for phase in ("train", "step", "sample", "save"):
        assert kept[phase].device == plain[phase].device
        assert kept[phase].host - plain[phase].host == pytest.approx(weights, rel=0.02), phase


def test_a_shared_prompt_is_counted_once():
    """Tokens of the largest pass, and operations of the step."""
    several = (*GUARDED, "batch_size=6", "group_size=4", "dataset.max_response_tokens=50")
    found = {}
    for shared in ("false", "true"):
        exp = experiment(
            *several, "micro_batch_tokens=650", f"model.shared_prompts={shared}", "kl_every=0"
        )
        limits = Limits(None, 650, shared=shared == "true")
        part = passes.batch_of(exp, passes.full_pass(exp, 100)).sequences
        found[shared] = len(part), limits.computed(part)
    assert found == {"false": (9, 594), "true": (12, 648)}
    seconds = [
        budget.plan(
            experiment("setting=paper/gsm8k", f"model.shared_prompts={shared}"), "h100-80", VALUES
        ).cost.seconds["train"]
        for shared in ("false", "true")
    ]
    once = (200 / 8 + 300) / 500 * (1 - VALUES["padding"])  # of the tokens, with 8 responses; the
    # head stays, and attention has longer rows
    assert once < seconds[1] / seconds[0] < once + 0.1


def test_ranks_share_weights_and_moments():
    alone = memory.training_memory(experiment(*GUARDED, "kl_every=0"), SMALL, 100)
    shared = memory.training_memory(experiment(*GUARDED, "kl_every=0", "ranks=4"), SMALL, 100)
    weights = memory.model_bytes(experiment(*GUARDED), SMALL)
    assert alone["step"].device > 3.9 * weights
    # Two moments, the weights, and the held ones, a fourth of each.
    assert shared["sample"].device == pytest.approx(weights, rel=0.05)


def test_a_state_written_beside_training_is_a_copy_on_the_host():
    weights = memory.model_bytes(experiment(*GUARDED), SMALL)
    for extra in ((), ("ranks=4",)):
        overrides = (*GUARDED, "kl_every=0", *extra)
        waits = memory.training_memory(experiment(*overrides), SMALL, 100)
        goes_on = memory.training_memory(
            experiment(*overrides, "async_checkpoints=true"), SMALL, 100
        )
        share = weights / (4 if extra else 1)
        for phase in ("sample", "train", "step", "save"):
            more = goes_on[phase].host - waits[phase].host
            assert more == pytest.approx(4 * share, rel=0.02), phase  # moments, and held weights
            assert goes_on[phase].device == waits[phase].device
        assert goes_on["resume"] == waits["resume"]


def test_a_resume_is_counted_with_the_code_that_restores(monkeypatch):
    """One that keeps what it was given beside its own copies would hold the moments twice."""
    exp = experiment(*GUARDED, "kl_every=0", "ranks=4")
    counted = memory.training_memory(exp, SMALL, 100)["resume"].device
    restore, kept = memory.restore, []

    def keeping(optimizer, state):
        kept.append(dict(state["state"]))
        restore(optimizer, state)

    monkeypatch.setattr(memory, "restore", keeping)
    twice = memory.training_memory(exp, SMALL, 100)["resume"].device
    assert twice - counted == pytest.approx(2 * memory.model_bytes(exp, SMALL) / 4, rel=0.1)


def test_a_configuration_with_names_of_its_own(tmp_path):
    """GPT-2's n_layer, and one whose number of layers is its class's default."""
    GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=512).save_pretrained(tmp_path / "gpt2")
    shape = budget.shape_of(experiment("model=pretrained", f"model.path={tmp_path}/gpt2"))
    assert shape["num_hidden_layers"] == 3
    exp = experiment(*GUARDED, f"model.path={tmp_path}/gpt2")
    few = memory.model_bytes(exp, {**shape, "num_hidden_layers": 2})
    assert memory.model_bytes(exp, shape) - few == pytest.approx(12 * 64 * 64 * 4, rel=0.03)
    LlamaConfig(hidden_size=64, vocab_size=512).save_pretrained(tmp_path / "llama")
    shape = budget.shape_of(experiment("model=pretrained", f"model.path={tmp_path}/llama"))
    assert shape["num_hidden_layers"] == LlamaConfig().num_hidden_layers


def test_a_hub_that_may_not_answer_is_asked_once(monkeypatch):
    """By its own means: the libraries' are for what it has said before."""
    asked = []
    monkeypatch.setattr(budget.hub, "silence", lambda: asked.append(1))
    monkeypatch.setattr(budget.AutoConfig, "from_pretrained", lambda path: GPT2Config())
    budget.shape_of(experiment("model=pretrained", "model.path=some/model"))
    assert asked == [1]


def test_a_configuration_without_a_number_of_layers_is_one_line(tmp_path):
    Gemma3Config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model\.path=.*gemma3 has no num_hidden_layers"):
        budget.shape_of(experiment("model=pretrained", f"model.path={tmp_path}"))


def test_the_meter_counts_what_is_alive():
    with Meter() as meter:
        one = torch.zeros(1000)
        view = one[10:].view(-1)
        two = one + 1
        del two
        most, now = meter.most["cpu"], meter.now["cpu"]
        meter.reset()
        one.untyped_storage().resize_(400)
        del one
        assert meter.now["cpu"] == 400
        del view
    assert (most, now) == (8000, 4000)
    assert meter.now["cpu"] == 0


def test_a_gradient_is_forgotten_with_its_graph():
    layer = nn.Linear(100, 100, bias=False)
    with Meter() as meter:
        loss = layer(torch.ones(7, 100)).square().sum()
        loss.backward()
        del loss
        assert meter.now["cpu"] == 80_000  # the weight, which an operation has read, and its own
        layer.zero_grad()
        assert meter.now["cpu"] == 40_000


def test_a_sampler_that_sleeps_leaves_the_device():
    found = [
        budget.sampler_memory(experiment("setting=paper/gsm8k", *extra), 6.2e9, 80e9, VALUES)
        for extra in ((), ("gpus=2x80gb",), ("sampler=native",))
    ]
    asleep, beside, native = found
    assert asleep == SamplerMemory(3.1e9, 12 * 2**30, 3e9, 1e9, asked=0.3 * 80e9)
    assert beside.drawing == pytest.approx(0.85 * 80e9)
    assert beside.asleep is None
    assert native.weights == 6.2e9


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["gpu=h100"], "gpu=h100: is not known; allowed: h100-80, a100-80, h200-141, a100-40"),
        (["gpus=8"], "gpus=8: names no layout; gpus=8x80gb is written so"),
        (["margin_gb=x"], "margin_gb=x: must be a number of at least 0, and finite"),
        (["margin_gb=-1"], "margin_gb=-1: must be a number of at least 0, and finite"),
        (["train_efficiency=0"], "train_efficiency=0: must be a number above 0, and finite"),
        (
            ["push_gb_per_second=inf"],
            "push_gb_per_second=inf: must be a number above 0, and finite",
        ),
        (["prompt_tokens=inf"], "prompt_tokens=inf: must be a number of at least 1, and finite"),
        (["response_tokens=0.4"], "response_tokens=0.4: must be a number of at least 1, and f"),
        (["padding=1"], "padding=1: must be a number of at least 0, and below 1"),
        (["setting=mini/gsm8k"], "model: a plan is for a model of transformers"),
        (["setting=paper/guru", "word"], "word: is not understood; allowed: key=value"),
        (["setting=paper/gruu"], "setting=paper/gruu: no such choice; allowed: "),
        (
            ["setting=paper/gsm8k", "dataset.max_response_tokens=1000000000"],
            "dataset.max_response_tokens=1000000000: must be below the model's context of 32768",
        ),
        (
            ["setting=paper/gsm8k", "batch_size=1000000", "micro_batch_tokens=1000000000000"],
            "micro_batch_tokens=1000000000000: a pass of 8000000 responses of 1024 tokens keeps",
        ),
    ],
)
def test_bad_input_is_one_line(arguments, line, monkeypatch, capfd):
    said = refused(arguments, monkeypatch, capfd, lambda: run_command("plan", *arguments))
    assert line in said


def test_a_run_that_does_not_fit_is_refused_with_what_would(monkeypatch, capsys):
    """7B does not fit one GPU; nothing of the plan is hidden by the refusal."""
    with pytest.raises(SystemExit) as stopped:
        run_command("plan", "setting=paper/guru", "gpus=1x80gb")
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert "does not fit" in out
    assert "assumed, not measured: margin_gb 5" in out
    assert len(err.splitlines()) == 1
    assert "what fits is gpus=8x80gb" in err
