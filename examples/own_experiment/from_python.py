"""The same comparison with objects in place of names: a model, lists of rows, a function.

python from_python.py FOLDER KEY=VALUE …
"""

import json
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from rec_experiments import Experiment, load_runs

folder, *overrides = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
train, test = (
    [json.loads(line) for line in Path(f"data/{name}.jsonl").read_text().splitlines()]
    for name in ("train", "test")
)


def judge(response: str, answer: str) -> float:
    return float(response.strip() == answer)


for algorithm in ("reinforce", "grpo"):
    experiment = Experiment.compose(
        f"algo={algorithm}", "sync=interval20", "model=fine_tuned", *overrides,
        model=(model, tokenizer), rows=(train, test), verifier=judge,
    )  # fmt: skip
    run = experiment.run()
    print(load_runs(run)[["step", "eval/accuracy"]].dropna().tail(1))
