"""`python -m rec_experiments plan`: what a run would need, before it runs."""

from rec_experiments.cli import command, help
from rec_experiments.plan.assumed import assumptions


def page() -> help.Page:
    given = assumptions()
    return help.Page(
        command="plan",
        usage=("[gpu=NAME] [ASSUMPTION=NUMBER …] [KEY=VALUE …]",),
        about="What a run would need, before it runs: memory of each phase on each GPU and on the "
        "host, operations, and the time of a gradient step. Exit code 2 if it does not fit, with "
        "what would. Nothing is downloaded, and no GPU is needed.",
        entries={
            "gpu=NAME": f"{', '.join(given['gpus'])}; default: {next(iter(given['gpus']))}",
            **{f"{key}=NUMBER": f"default: {value:g}" for key, value in given["values"].items()},
            "KEY=VALUE": "of a run, as in setting=paper/guru gpus=8x80gb micro_batch_tokens=8192",
        },
    )


def run(arguments: list[str]) -> None:
    """As `report.run`. Raises UserError as it does."""
    from rec_experiments.plan import report  # torch loads only for a plan

    report.run(arguments)


def main(arguments: list[str]) -> None:
    command.plain_main(run, page(), arguments)
