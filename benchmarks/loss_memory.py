"""Peak memory of the loss: all logits at once against the head in chunks of tokens.

Run `python benchmarks/loss_memory.py`. One gradient of REINFORCE over 4,096 tokens of a vocabulary
of 151,936 (Qwen2.5's) in a small Qwen2: hidden size 128, 1 layer. Each path has its own process
and prints what it needs above the model and its gradients: on a GPU what torch allocates, else
resident memory. "difference" is the greatest difference of a gradient from that of all logits at
once, relative to the greatest entry of that parameter's. The paths of TRL and Liger run beside them
where those are installed; Liger's gives no entropy.
"""

import argparse
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rec_experiments.policy import logprobs as scores
from rec_experiments.policy.logprobs import TokenBatch, collate, compute_logprobs, head_output
from rec_experiments.types import Sequences

VOCABULARY, HIDDEN = 151_936, 128
SEQUENCES, PROMPT, RESPONSE = 8, 16, 512
MIB = 2**20


def small_model(device: str) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).to(device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def batch(device: str) -> tuple[TokenBatch, Tensor]:
    """Token ids, and an advantage for each sequence."""
    torch.manual_seed(1)
    ids = torch.randint(VOCABULARY, (SEQUENCES, PROMPT + RESPONSE)).tolist()
    tokens = Sequences.of([row[:PROMPT] for row in ids], [row[PROMPT:] for row in ids])
    rows = collate(tokens, pad_id=0)
    return rows.to(torch.device(device)), torch.randn(SEQUENCES).to(device)


def in_chunks(model: PreTrainedModel, rows: TokenBatch, advantage_B: Tensor) -> Tensor:
    return -(advantage_B[:, None] * compute_logprobs(model, rows, 1.0).logp_BT).mean()


def all_at_once(model: PreTrainedModel, rows: TokenBatch, advantage_B: Tensor) -> Tensor:
    scores.LOGITS_AT_ONCE = SEQUENCES * RESPONSE * VOCABULARY
    return in_chunks(model, rows, advantage_B)


def trl(model: PreTrainedModel, rows: TokenBatch, advantage_B: Tensor) -> Tensor:
    """As its GRPO trainer does it without Liger: on all logits."""
    from trl.trainer.utils import selective_log_softmax_and_entropy

    logp_BT, _ = selective_log_softmax_and_entropy(
        head_output(model, rows), rows.input_ids[:, -RESPONSE:], entropy_requires_grad=False
    )
    return -(advantage_B[:, None] * logp_BT).mean()


def liger(model: PreTrainedModel, rows: TokenBatch, advantage_B: Tensor) -> Tensor:
    """Its GRPO loss at ratio 1, compiled on a GPU as it is by default."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    hidden_BSD = model.model(
        input_ids=rows.input_ids, attention_mask=rows.attention_mask, use_cache=False
    ).last_hidden_state
    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, use_ref_model=False, loss_type="bnpo", compiled=hidden_BSD.is_cuda
    )
    return loss(
        hidden_BSD[:, -RESPONSE - 1 : -1],
        model.lm_head.weight,
        rows.input_ids[:, -RESPONSE:],
        rows.attention_mask[:, -RESPONSE:],
        advantage_B,
    )[0]


PATHS: dict[str, Callable[[PreTrainedModel, TokenBatch, Tensor], Tensor]] = {
    "all at once": all_at_once,
    "in chunks": in_chunks,
    "trl": trl,
    "liger": liger,
}


PACKAGES = {"trl": "trl", "liger": "liger_kernel"}


def installed(name: str) -> bool:
    return name not in PACKAGES or importlib.util.find_spec(PACKAGES[name]) is not None


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(name: str, device: str, gradients: Path) -> None:
    """Print the peak in MiB and the seconds of one gradient, and save the gradient."""
    model, (rows, advantage_B) = small_model(device), batch(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else resident()
    started = time.perf_counter()
    PATHS[name](model, rows, advantage_B).backward()
    if device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in KiB on Linux
    seconds = time.perf_counter() - started
    torch.save({n: p.grad.cpu() for n, p in model.named_parameters()}, gradients)
    print((peak - before) / MIB, seconds)


def difference(file: Path, reference: Path) -> float:
    """The greatest difference of two gradients, relative to each parameter's greatest entry."""
    one, two = (torch.load(path, weights_only=True) for path in (file, reference))
    return max(float((one[n] - two[n]).abs().max() / two[n].abs().max()) for n in two)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--path", choices=PATHS, help="measure this one, in this process")
    parser.add_argument("--gradients", type=Path, help="file for its gradient")
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.path:
        measure(arguments.path, device, arguments.gradients)
        return
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU, resident memory"
    print(
        f"{date.today()}, {where}, torch {torch.__version__}, float32: "
        f"{SEQUENCES * RESPONSE} tokens, vocabulary {VOCABULARY}, hidden size {HIDDEN}"
    )
    print("path         peak MiB  of all at once  seconds  difference")
    with tempfile.TemporaryDirectory() as folder:
        reference, whole = Path(folder, "all at once"), 0.0
        for name in (name for name in PATHS if installed(name)):
            file = Path(folder, name)
            command = [sys.executable, __file__, "--device", device]
            done = subprocess.run(
                [*command, "--path", name, "--gradients", str(file)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"{name}: failed\n{done.stderr}")
            peak, seconds = map(float, done.stdout.split()[-2:])
            whole = whole or peak
            print(
                f"{name:11}  {peak:8.0f}  {peak / whole:14.3f}  {seconds:7.1f}  "
                f"{difference(file, reference):10.1e}"
            )


if __name__ == "__main__":
    main()
