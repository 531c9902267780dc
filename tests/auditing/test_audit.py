"""The audit names every planted fault, and nothing in clean batches."""

import json
import math

import made
import pandas
import planted
import pytest
import torch
from safetensors.torch import save_file

import rec_experiments
from rec_experiments.auditing.batch import of, read
from rec_experiments.auditing.statistics import effective_share, measure
from rec_experiments.cli.main import run_command
from rec_experiments.common.errors import UserError

SEED = 3
WARM = "model.warm_start.steps=100"  # a third of the usual


@pytest.fixture(scope="module")
def lab() -> planted.Lab:
    return planted.miniature(WARM)


@pytest.fixture(scope="module")
def folder(lab, tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    lab.model.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def clean(lab) -> dict:
    return lab.batch(SEED)


NAMES = [name for name in planted.plants(None, 0) if name != "slow dropped"]


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_fault_is_named(name, lab, folder):
    fault, make, needs_model = planted.plants(lab, SEED)[name]
    report = rec_experiments.audit(model=folder if needs_model else None, **make())
    assert fault in [finding.fault for finding in report.findings]


def test_a_clean_batch_has_no_finding(lab, folder, clean):
    assert rec_experiments.audit(**clean, model=folder).findings == []
    stale = lab.batch(SEED, drawn_by=lab.behind)
    stale["loss"] = planted.loss(stale)
    report = rec_experiments.audit(**stale)
    assert report.findings == []
    assert report.statistics["loss"]["is"].startswith("−ρA, clip=one_side correction=none")
    low = {**clean, **dict.fromkeys(("logp", "behavior_logp"), planted.low_head(lab, clean))}
    low["sampler_logp"] = low["logp"] + 0.01 * torch.randn(low["logp"].shape)
    low["sampler_logp"].clamp_(max=0)
    assert rec_experiments.audit(**low, dtype="bfloat16").findings[1:] == []


@pytest.mark.parametrize(
    "overrides",
    [
        ("sync=on_policy",),
        ("sync.interval=3", "algo=tis", "sampler=noisy", "sampler.noise=1e-6"),
        ("sync.interval=1", "sync.offset=2"),
        ("sync=in_flight",),
    ],
    ids=" ".join,
)
def test_batches_of_this_project_have_no_finding(overrides):
    small = ("batch_size=8", "steps=6", "eval_problems=8", "kl_every=0", WARM)
    for batch in made.of_run(4, *small, *overrides):
        assert rec_experiments.audit(**batch).findings == []


def lengths(seed: int, slow: bool) -> dict:
    """16 groups of 8 responses, of which half are lost: the slower ones, or any."""
    rng = torch.Generator().manual_seed(seed)
    length = (10 + 40 * torch.rand(16, 1, generator=rng)).expand(16, 8).flatten()
    length = (length * (0.2 * torch.randn(128, generator=rng)).exp()).long() + 1
    delay = (0.3 * torch.randn(128, generator=rng)).exp()
    kept = (length * delay if slow else delay).argsort()[:64].sort().values
    mask = torch.arange(int(length.max())) < length[kept, None]
    return {"mask": mask, "groups": torch.arange(128)[kept] // 8, "group_size": 8}


def test_slow_responses_that_are_lost():
    found = [rec_experiments.audit(**lengths(seed, slow=True)).findings for seed in range(20)]
    assert [len(findings) for findings in found].count(1) >= 18
    assert {each.fault for findings in found for each in findings} == {"short answers preferred"}
    for seed in range(100):
        assert rec_experiments.audit(**lengths(seed, slow=False)).findings == []


# Reading ------------------------------------------------------------------------------------------


def as_lists(batch: dict) -> list[dict]:
    """A row for each response, as JSON and parquet have them."""
    rows = []
    for b in range(len(batch["tokens"])):
        length = int(batch["mask"][b].sum())
        rows.append(
            {
                "tokens": batch["tokens"][b, :length].tolist(),
                "logp": batch["logp"][b, :length].tolist(),
                "sampler_logp": batch["sampler_logp"][b, :length].tolist(),
                "prompts": batch["prompts"][b],
                "rewards": float(batch["rewards"][b]),
                "groups": f"problem {int(batch['groups'][b])}",
                "versions": int(batch["versions"][b]),
                "step": batch["step"],
                "finished": bool(batch["finished"][b]),
            }
        )
    return rows


def test_all_files_say_the_same(clean, tmp_path):
    rows = as_lists(clean)
    names = [*rows[0]]
    tensors = {name: clean[name] for name in (*names, "mask")}
    torch.save(tensors, tmp_path / "batch.pt")
    (tmp_path / "batch.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pandas.DataFrame(rows).to_parquet(tmp_path / "batch.parquet")
    wide = {name: x for name, x in tensors.items() if isinstance(x, torch.Tensor)}
    save_file({**wide, "step": torch.tensor(clean["step"])}, tmp_path / "batch.safetensors")
    expected = of(tensors)
    for ending in ("pt", "jsonl", "parquet", "safetensors"):
        found = read(tmp_path / f"batch.{ending}")
        torch.testing.assert_close(found.logps, expected.logps)
        assert torch.equal(found.mask_BT, expected.mask_BT)
        assert torch.equal(found.groups_B, expected.groups_B)
        assert torch.equal(found.versions_BT, expected.versions_BT)
        assert found.step == 5
        assert ending == "safetensors" or found.prompts == expected.prompts


def test_names_of_other_trainers(clean):
    theirs = of(
        {
            "completion_ids": clean["tokens"],
            "completion_mask": clean["mask"].long(),
            "prompt_ids": torch.tensor([[0, 0, *p[-2:]] for p in clean["prompts"]]),
            "prompt_mask": torch.tensor([[0, 0, 1, 1]] * len(clean["prompts"])),
            "old_per_token_logps": clean["behavior_logp"],
            "num_items_in_batch": torch.tensor(9),
        }
    )
    assert theirs.prompts == [p[-2:] for p in clean["prompts"]]
    assert torch.equal(theirs.logps["behavior"], of(clean).logps["behavior"])
    assert theirs.unread == ("num_items_in_batch",)


def test_what_cannot_be_read_is_one_line(clean, tmp_path):
    class Harmful:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"logp": Harmful()}, tmp_path / "harmful.pt")
    (tmp_path / "broken.jsonl").write_text("{")
    (tmp_path / "list.jsonl").write_text("[1]")
    torch.save({**clean, "mask": clean["mask"][1:]}, tmp_path / "short.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "folder.pt").mkdir()
    for name, said in {
        "harmful.pt": "holds more than tensors, numbers and texts",
        "list.pt": "holds no dictionary",
        "list.jsonl": "no object of columns",
        "folder.pt": "is a folder",
        "broken.jsonl": "cannot be read",
        "short.pt": "must have one row",
        "none.pt": "no such file",
        "batch.csv": "the name must end in",
    }.items():
        with pytest.raises(UserError, match=said) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
    for columns, said in [
        ({"rewards": [1.0]}, "no column has a value for each token"),
        ({"logp": torch.zeros(2, 3)}, "mask: is missing"),
        ({"logp": [[-1.0, math.nan]]}, "row 0, token 1 is nan"),
        ({"logp": [[0.5]]}, "must be a log-probability"),
        ({"logp": [[-1.0]], "rewards": [0.0, 1.0]}, "rewards: must have 1 rows"),
        ({"logp": [[-1.0], [-1.0]], "step": [1, 2]}, "step: must be one value"),
    ]:
        with pytest.raises(UserError, match=said):
            of(columns)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"advantages": [math.nan, 1.0]}, "^advantages: must be finite"),
        ({"rewards": [math.inf, 1.0]}, "^rewards: must be finite"),
        ({"rewards": torch.ones(2, 2, 2)}, "^rewards .*must have one value"),
        ({"versions": [math.nan, 0.0]}, "^versions: must be finite"),
        ({"tokens": [[1, 2], [3, math.nan]]}, "^tokens: must be finite"),
        ({"step": math.inf}, "^step=inf: must be a finite number"),
        ({"step": 10**30}, "^step=1000.*: must be a finite number"),
        ({"loss": math.nan}, "^loss=nan: must be a finite number"),
        ({"dtype": "fp32"}, "^dtype=fp32: must be one of float32, "),
        ({"aggregation": "mean"}, "^aggregation=mean: must be one of .*token_mean"),
        ({"group_size": 0}, "^group_size=0: must be at least 1"),
        ({"groups": 3}, "^groups: must have 2 rows"),
        ({"mask": [[0, 0], [0, 0]]}, "^mask: no token counts"),
        ({"logp": torch.ones(2, 2, dtype=torch.complex64)}, "^logp: must be numbers"),
        ({"prompts": torch.ones(2, 3), "prompt_mask": torch.ones(2, 2)}, "^prompt_mask"),
    ],
)
def test_numbers_that_no_test_could_judge_are_refused(column, said):
    batch = {"logp": [[-1.0, -2.0], [-1.0, -2.0]], "tokens": [[1, 2], [3, 4]]}
    with pytest.raises(UserError, match=said):
        of({**batch, **column})


@pytest.mark.parametrize("dtype", ["float32", "torch.float32", torch.float32])
def test_a_dtype_as_torch_writes_it(dtype):
    assert of({"logp": [[-1.0]], "dtype": dtype}).dtype == "float32"


def test_lines_end_where_json_lines_do(tmp_path):
    """Not at a line separator within a text."""
    row = {"logp": [-1.0, -2.0], "groups": "a\u2028b"}
    file = tmp_path / "batch.jsonl"
    file.write_text(json.dumps(row, ensure_ascii=False) + "\r\n\r\n", encoding="utf-8-sig")
    assert read(file).lengths_B.tolist() == [2]


def test_the_command(clean, tmp_path, capsys):
    torch.save(clean, tmp_path / "clean.pt")
    run_command("audit", str(tmp_path / "clean.pt"), f"--html={tmp_path / 'page.html'}")
    assert "no finding" in capsys.readouterr().out
    assert "no finding" in (tmp_path / "page.html").read_text()
    torch.save(planted.shifted(clean), tmp_path / "shifted.pt")
    with pytest.raises(SystemExit) as ended:
        run_command("audit", str(tmp_path / "shifted.pt"), "--json")
    assert ended.value.code == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert finding["fault"] == "shifted log-probabilities"


# Statistics ---------------------------------------------------------------------------------------


def test_statistics_in_closed_form():
    double, half = math.log(2), math.log(0.5)
    found = measure(
        of(
            {
                "logp": [[-1.0, -1.0], [-2.0]],
                "behavior_logp": [[-1.0 - double, -1.0 - half], [-2.0]],
                "sampler_logp": [[-1.0 - double, -1.0 - half], [-2.5]],
                "versions": [[3, 4], [4]],
                "step": 5,
                "advantages": [1.0, -1.0],
            }
        )
    )
    assert found["age"] == {"min": 1.0, "mean": pytest.approx(4 / 3), "max": 2.0}
    assert found["ratio"]["mean"] == pytest.approx(3.5 / 3)
    assert found["ratio"]["median"] == pytest.approx(1)
    assert found["ratio"]["mean_square"] == pytest.approx(2 * double**2 / 3)
    assert found["ratio"]["ess_tokens"] == pytest.approx(3.5**2 / 3 / 5.25)
    assert found["ratio"]["ess_responses"] == pytest.approx(1)
    assert [part["mean"] for part in found["ratio_by_age"]] == [
        pytest.approx(0.75), pytest.approx(2),
    ]  # fmt: skip
    assert found["mismatch"]["max"] == pytest.approx(0.5)
    assert found["clipped"]["one_side"] == pytest.approx(1 / 3)  # ρ = 2 where A > 0
    assert found["clipped"]["two_side"] == pytest.approx(2 / 3)
    assert found["clipped"]["none"] == 0
    assert effective_share(torch.zeros(4)) == pytest.approx(1)


def test_what_is_missing_is_said():
    report = rec_experiments.audit(logp=[[-1.0]], behavior_logp=[[-1.0]])
    assert report.findings == []
    assert report.untold["end token"] == "tokens"
    assert report.untold["normalisation"] == "loss"


def test_a_few_copied_groups_are_enough():
    """Two of 16 groups are eight copies of a response that has a probability below e^-30."""
    tokens_BT = torch.randint(0, 50, (128, 12), generator=torch.manual_seed(0))
    logp_BT = -3 - torch.rand(128, 12, generator=torch.manual_seed(1))
    tokens_BT[:16] = tokens_BT[:16:8].repeat_interleave(8, 0)
    columns = {"tokens": tokens_BT, "logp": logp_BT, "mask": torch.ones(128, 12)}
    found = rec_experiments.audit(**columns, groups=torch.arange(128) // 8).findings
    assert [each.fault for each in found] == ["copied responses"]
    assert "in 2 of 16 groups" in found[0].evidence
