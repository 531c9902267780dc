"""This project: `this_project.py FOLDER NAME first|given [OVERRIDE …]` trains, with a first draw of
its own or the one that another has made.

`this_project.py prepare FOLDER HASHED [OVERRIDE …]` writes the model, the problems and work.json.
"""

import json
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from work import NEVER_CLIPPED, Pace, Work, keep_first_gradient

from rec_experiments.common import rng
from rec_experiments.common.batch import Responses, SampleKey
from rec_experiments.common.problems import VerifierResult
from rec_experiments.common.protocols import Sampler
from rec_experiments.config import plugins, schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.datasets.verifiers.verifier_pool import inline_verifier
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.training.trainer import Trainer

# Training alone: others do not evaluate, measure KL or write states either.
ALONE = (
    "shuffle=false", "kl_every=0", "eval_every=1000000", "checkpoint_every=1000000",
    "eval_problems=1", "steps=100000", f"optimizer.max_grad_norm={NEVER_CLIPPED}",
)  # fmt: skip


def loaded(overrides: list[str]) -> tuple[Experiment, Trainer]:
    with initialize_config_dir(str(plugins.CONF), version_base="1.3"):
        experiment = schema.build(compose("config", [*ALONE, *overrides]), Experiment)
    return experiment, prepare(experiment)


def make(folder: Path, hashed: bool, overrides: list[str]) -> None:
    """Write what all contestants read."""
    experiment, trainer = loaded(overrides)
    folder.mkdir(parents=True, exist_ok=True)
    trainer.model.save_pretrained(folder / "model")
    chat = trainer.evaluator.chat
    tokenizer = chat.tokenizer
    tokenizer.save_pretrained(folder / "model")
    problems = [
        {"prompt": tokenizer.decode(chat.encode(problem.messages)), "answer": problem.answer}
        for problem in trainer.rollouts.problems
    ]
    (folder / "problems.json").write_text(json.dumps(problems))
    Work(
        folder=str(folder),
        overrides=overrides,
        prompts=experiment.batch_size,
        group_size=experiment.group_size,
        limit=experiment.dataset.max_response_tokens,
        context=experiment.dataset.max_prompt_tokens + experiment.dataset.max_response_tokens,
        interval=experiment.sync.interval or 1,
        hashed=hashed,
        learning_rate=experiment.optimizer.learning_rate,
    ).save(experiment.dataset)


class Watched:
    """A sampler that tells the pace what it has drawn for training. What it draws from the first
    version, maybe in several calls, is kept, or taken from who was first."""

    def __init__(self, sampler: Sampler, work: Work, pace: Pace, first: bool):
        self.sampler, self.work, self.pace, self.first = sampler, work, pace, first
        self.prompts: list[list[int]] = []  # drawn so far
        self.rows: list[list[dict]] = []
        self.load = sampler.load

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> Responses:
        if draws[0][0].stream != rng.TRAIN:
            return self.sampler.sample(prompts, draws, temperature)
        start = len(self.prompts)
        is_first_version = start < self.work.per_version
        if is_first_version:
            self.prompts += prompts
        if is_first_version and not self.first:
            given = self.work.first_draw(prompts, start)
            columns = {name: [row[name] for row in given] for name in given[0]}
            return Responses.of(**columns)
        with self.pace.sampling():
            responses = self.sampler.sample(prompts, draws, temperature)
        self.pace.tokens += int(responses.written_B.sum())
        if is_first_version:
            self.rows += grouped(responses, list(map(len, draws)))
            self.work.write_first_draw(self.prompts, self.rows)
        return responses


def grouped(responses: Responses, counts: list[int]) -> list[list[dict]]:
    """The responses as JSON has them, prompt by prompt."""
    lengths = responses.length_B.tolist()
    logps = [row[:n] for row, n in zip(responses.logp_BT.tolist(), lengths, strict=True)]
    columns = responses.tokens(), logps, responses.finished_B.tolist(), responses.masks()
    names = ("tokens", "logps", "finished", "masks")
    rows = iter([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
    return [[next(rows) for _ in range(count)] for count in counts]


def shared(work: Work, overrides: list[str]) -> list[str]:
    """Those of the workload; without the tiny model's own where another is chosen."""
    other = any(line.startswith("model=") for line in overrides)
    return [line for line in work.overrides if not (other and line.startswith("model."))]


def run(work: Work, name: str, first: bool, overrides: list[str]) -> None:
    pace = Pace()
    _, trainer = loaded([*shared(work, overrides), *overrides])
    worker = trainer.rollouts.worker
    worker.sampler = Watched(worker.sampler, work, pace, first)
    worker.verifier = inline_verifier(
        lambda text, answer: VerifierResult(reward=work.reward(text, answer), accuracy=0.0)
    )
    keep_first_gradient(work, name, trainer.model)
    folder = RunFolder(Path(work.folder, f"run_{name}"))
    folder.start({}, {})
    trainer.train(folder, on_row=lambda row: pace.stepped() if row["step"] else pace.ready())


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        make(Path(sys.argv[2]), bool(int(sys.argv[3])), sys.argv[4:])
    else:
        run(Work.load(sys.argv[1]), sys.argv[2], sys.argv[3] == "first", sys.argv[4:])
