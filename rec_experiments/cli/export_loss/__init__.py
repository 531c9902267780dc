"""Writes a preset as a loss for the trainer of another project: one file in its interface, which
imports this package. A preset whose loss needs what that trainer does not hand over is refused."""

import json
import keyword
import textwrap
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rec_experiments.algo.advantages import TrainTruncated
from rec_experiments.cli.algorithms import BASE, changes
from rec_experiments.cli.parser import PROGRAM, file_ending, option, overrides
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import write_out
from rec_experiments.config.composition import composing

if TYPE_CHECKING:
    from torch import Tensor

    from rec_experiments.config.standalone import StandaloneAlgorithm


@dataclass(frozen=True)
class Peer:
    """name: to display. policies: whose log-probabilities it hands to a loss beside the current
    policy's. of_tokens: it divides by tokens, whatever the loss. advantages: a loss may bring its
    own."""

    name: str
    policies: frozenset[str]
    of_tokens: bool = False
    advantages: bool = True


PEERS = {
    "trl": Peer("TRL", frozenset({"behavior", "sampler", "reference"})),
    "verl": Peer("verl", frozenset({"behavior"})),
    "prime_rl": Peer("prime-rl", frozenset({"behavior"}), of_tokens=True, advantages=False),
}


def main(
    preset: Annotated[str, Parameter("NAME", help="a preset, as in algo=NAME")],
    /,
    *changes: Annotated[str, overrides("changes pieces of the loss, as in clip.high=0.28")],
    trainer: Annotated[
        Literal["trl", "verl", "prime_rl"],
        Parameter(
            help="trl: a subclass of GRPOTrainer; verl: a registered policy loss and advantage "
            "estimator; prime_rl: a custom loss function"
        ),
    ],
    out: Annotated[
        Path | None,
        option(file_ending(".py"), "the module to write; by default rec_NAME_TRAINER.py"),
    ] = None,
) -> None:
    """Raises UserError for a loss that the trainer cannot carry, and a file that cannot be
    written."""
    out = out or Path(f"rec_{preset}_{trainer}.py")
    if not out.stem.isidentifier() or keyword.iskeyword(out.stem):
        raise UserError(f"--out={out}: must be the name of a Python module, as in my_loss.py")
    write_out(out, text(preset, [*changes], trainer, out.stem).encode())
    print(f"{out}: its first lines say how to use it")


def text(preset: str, overrides: list[str], trainer: str, module: str) -> str:
    """The file. Raises UserError as `algorithm` does, and for a loss that the trainer cannot
    carry."""
    from rec_experiments.config.standalone import OF_A_RUN, algorithm  # imports torch

    loss, peer = algorithm(preset, *overrides), PEERS[trainer]
    mean_over = carried(preset, loss, peer)
    with composing() as compose:
        config = compose("algorithm", [f"algo={preset}", *overrides])
        base = compose("algorithm", [f"algo={BASE}"])
    about = [f"    {line}" for line in loss.describe().splitlines()]
    own = () if peer.advantages else ("advantage",)
    if left_out := changes(config, base, (*OF_A_RUN, *own)):
        said = f"A loss cannot carry the rest of the preset: {', '.join(left_out)}."
        about += ["", *textwrap.wrap(said, 98)]
    words = " ".join([preset, f"--trainer {trainer}", *overrides])
    return Template(
        (Path(__file__).parent / f"{trainer}.py.template").read_text("utf-8")
    ).substitute(
        TITLE=_in_docstring(f"{config.algo.name} ({config.algo.source})"),
        COMMAND=_in_docstring(f"{PROGRAM} export-loss {words}"),
        ABOUT=_in_docstring("\n".join(about)),
        PRESET='", "'.join(json.dumps(word)[1:-1] for word in (preset, *overrides)),
        NAME=f"rec_{preset}",
        MODULE=module,
        MEAN_OVER=mean_over,
    )


def _in_docstring(text: str) -> str:
    """Text that neither ends a docstring nor begins an escape sequence in it."""
    return text.replace("\\", r"\\").replace('"""', r"\"\"\"")


def carried(preset: str, loss: "StandaloneAlgorithm", peer: Peer) -> str:
    """What the loss is a mean over: tokens or responses. Raises UserError if it needs more than
    the trainer hands over."""
    needs = loss.parts.needs
    policies = ", ".join(sorted(needs.logps - peer.policies))
    if needs.dense:
        reason = f"reads the exact {', '.join(sorted(needs.dense))}; {peer.name} passes no logits"
    elif policies:
        reason = f"reads log-probabilities of the {policies} policy, which {peer.name} lacks"
    elif not isinstance(loss.parts.truncation, TrainTruncated):
        reason = f"depends on which responses were truncated, which {peer.name} does not report"
    elif (mean_over := mean(loss)) is None:
        reason = f"compares all responses of a mini-batch; {peer.name} passes only some at a time"
    elif peer.of_tokens and mean_over != "tokens":
        reason = f"is a mean over responses; {peer.name} divides by the number of tokens"
    else:
        return mean_over
    raise UserError(f"{preset}: its loss {reason}")


def mean(loss: "StandaloneAlgorithm") -> str | None:
    """What a loss is a mean over, tokens or responses, if the gradient of each response follows
    from that response and its advantage; otherwise None. Tried on made-up mini-batches, with ratios
    close to 1 and far from it."""
    import torch

    if loss.parts.needs.whole_batch:
        return None
    lengths_B = torch.tensor([1, 2, 5, 3, 6, 4])
    mask_BT = torch.arange(6) < lengths_B[:, None]
    one_B = torch.ones(6, dtype=torch.float64)
    # A weighting that balances the signs drops a response of each group.
    advantage_B = torch.tensor([2.0, -0.5, -1.0, -2.0, 1.5, -0.5], dtype=torch.float64)
    fixed = {"mask": mask_BT, "groups": torch.arange(6) // 3, "advantages": advantage_B}
    possible = {"tokens": lengths_B / lengths_B.sum(), "responses": one_B / 6}
    for spread in (0.01, 0.3, 3.0):
        random = torch.Generator().manual_seed(0)
        batch = fixed | {
            name: -1 - spread * torch.rand(6, 6, generator=random, dtype=torch.float64)
            for name in ("logp", "behavior_logp", "sampler_logp", "reference_logp")
        }
        whole_BT = _gradient(loss, batch)
        each = [{name: x[row : row + 1] for name, x in batch.items()} for row in range(6)]
        alone_BT = torch.cat([_gradient(loss, row) for row in each])
        possible = {
            name: share_B
            for name, share_B in possible.items()
            if torch.allclose(whole_BT, alone_BT * share_B[:, None], rtol=1e-6, atol=1e-12)
        }
    return next(iter(possible), None)


def _gradient(loss: "StandaloneAlgorithm", batch: dict[str, Any]) -> "Tensor":
    """Of the loss by the log-probabilities, B x T."""
    logp_BT = batch["logp"].clone().requires_grad_()
    loss(**{**batch, "logp": logp_BT}).loss.backward()
    assert logp_BT.grad is not None
    return logp_BT.grad
