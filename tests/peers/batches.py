"""Mini-batches and rows of docs/peers.yaml, for the comparisons with other people's code."""

from pathlib import Path

import numpy as np
import torch
import yaml

import rec_experiments

PEERS = yaml.safe_load((Path(__file__).parents[2] / "docs" / "peers.yaml").read_text())
GROUPS, K, LENGTH = 4, 3, 8


def rows(peer: str, compared: bool = True) -> list[dict]:
    """Those with a counterpart here, or those without."""
    return [row for row in PEERS[peer]["rows"] if ("ours" in row) == compared]


def name(row: dict) -> str:
    return " ".join(f"{key}={value}" for key, value in row["call"].items())


def batch(seed: int, spread: float) -> dict[str, torch.Tensor]:
    """Log-probabilities of all policies, B x T in float64, with ratios about e^±spread."""
    rng = np.random.default_rng(seed)
    rows, shape = GROUPS * K, (GROUPS * K, LENGTH)
    behavior = -rng.gamma(2.0, 0.7, shape)

    def near(width: float) -> np.ndarray:
        return np.minimum(behavior + width * rng.normal(size=shape), -1e-3)

    lengths = np.concatenate([[1, LENGTH], rng.integers(1, LENGTH + 1, rows - 2)])
    found = {
        "logp": near(spread),
        "behavior": behavior,
        "sampler": near(0.4),
        "reference": near(0.3),
        "mask": np.arange(LENGTH) < lengths[:, None],
        "advantages": np.where(np.arange(rows) == 2, 0.0, rng.normal(size=rows)),
        "groups": np.repeat(np.arange(GROUPS), K),
    }
    return {key: torch.from_numpy(value) for key, value in found.items()}


def ours(row: dict, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """∂ loss / ∂ logp of the row's counterpart, B x T."""
    logp = x["logp"].clone().requires_grad_()
    preset, *overrides = row["ours"]
    rec_experiments.algorithm(preset, *overrides)(
        logp=logp,
        behavior_logp=x["behavior"],
        sampler_logp=x["sampler"],
        reference_logp=x["reference"],
        advantages=x["advantages"],
        groups=x["groups"],
        mask=x["mask"],
    ).loss.backward()
    return logp.grad * row.get("times", 1.0)


def same(row: dict, theirs: torch.Tensor, mine: torch.Tensor) -> None:
    """Equal as closely as the row says, and not both zero."""
    assert mine.abs().max() > 1e-4
    torch.testing.assert_close(theirs, mine, rtol=row.get("within", 1e-7), atol=1e-10)
