"""`python -m rec_experiments evaluate`: scores of a run's model, or any other."""

from rec_experiments.cli import command, help
from rec_experiments.config import schema
from rec_experiments.errors import UserError

PAGE = help.Page(
    command="evaluate",
    usage=("RUN [step=N] [KEY=VALUE …]", "MODEL dataset=NAME [step=N] [KEY=VALUE …]"),
    about="Answers the held-out problems and prints the scores, the accuracy with its 95 % "
    "interval over problems. With the keys of the run, a checkpoint scores as the run said of "
    "that step.",
    entries={
        "RUN": "a run folder",
        "MODEL": "a folder of transformers, or a name on the hub",
        "dataset=NAME": "what a model that is no run's answers; default: that of a run",
        "step=N": "of a run: the checkpoint, which names the draws as well; default: the newest",
        "KEY=VALUE": "of a run, as eval_samples=4 dataset.path=FOLDER; with a MODEL choices of "
        "groups too, as sampler=vllm_beside",
    },
)


def run(arguments: list[str]) -> None:
    line = command.parse(arguments, "step")
    if len(line.words) != 1:
        raise UserError("give one run folder, one folder of a model, or its name on the hub")
    schema.register()
    from rec_experiments.runs.evaluation import evaluate  # torch loads only for a real evaluation

    found = evaluate(line.words[0], command.whole_number(line, "step"), line.overrides)
    for name, value in found.metrics.items():
        print(f"{name:24} {value:.4f}")
    between = f"{found.low:.4f} to {found.high:.4f}, {found.problems} problems"
    print(f"{'95 % of eval/accuracy':24} {between}")


def main(arguments: list[str]) -> None:
    command.plain_main(run, PAGE, arguments)
