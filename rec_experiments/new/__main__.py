"""`python -m rec_experiments new`: a package of your own, to begin with."""

import sys
from pathlib import Path

from rec_experiments import command, help
from rec_experiments.errors import UserError
from rec_experiments.new import KINDS, create

PAGE = help.Page(
    command="new",
    usage=("algorithm NAME", "task NAME"),
    about="Writes a small package of your own into the folder NAME: it works as it stands, and is "
    "to be changed. Installed beside this project (pip install ./NAME), its parts are chosen, "
    "swept and listed as the project's own.",
    entries={
        "algorithm": "a piece of a loss, a preset, a test against a closed form, and a sweep "
        "against GRPO and REC at three stalenesses",
        "task": "problems, a verifier and demonstrations of your own, with a test",
        "NAME": "of the package, its folder, and what it adds",
    },
)


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong argument, and as `create` does."""
    line = command.parse(arguments)
    for override in line.overrides:
        raise UserError(f"{override}: is not understood; allowed: {'|'.join(KINDS)} NAME")
    match line.words:
        case [kind, name]:
            folder = create(kind, name, Path.cwd())
        case _:
            words = " ".join(["new", *line.words])
            raise UserError(f"{words}: a kind and a name are wanted, as in new algorithm my_idea")
    print((folder / "README.md").read_text(encoding="utf-8"), end="")


def main(arguments: list[str]) -> None:
    command.plain_main(run, PAGE, arguments)


if __name__ == "__main__":
    with command.told_once():
        main(sys.argv[1:])
