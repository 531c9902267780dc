"""A user's mistake in a command that reads runs is one line and exit code 2."""

import pytest

from rec_experiments.cli.main import run_command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("figures fig99", "figure fig99: no such figure; did you mean fig9?"),
        ("figures fig3 --smooth=0", 'Invalid value "0" for --smooth. Must be >= 1; see '),
        ("figures fig3 --runs=/nowhere", "--runs=/nowhere: no such folder"),
        ("figures fig8 seed=0", "seed: fig8 is computed"),
        ("figures fig8 --out=/dev/null/x", "/dev/null/x: cannot be written (Not a directory)"),
        ("claims scale=tiny", "scale=tiny: no such choice; "),
        ("claims --out=claims.txt", "--out=claims.txt: the name must end in .md"),
        ("claims scale=mini", "no claim has finished runs; "),
        ("report", "nothing to show: there is no run yet"),
        ("report --runs=empty.csv.xz", "empty.csv.xz: is no archive of runs"),
        ("report --out=page.pdf", "--out=page.pdf: the name must end in .html"),
        ("report --wandb=project", "project: must be ENTITY/PROJECT"),
        ("report --wandb=a/b --runs=.", "--runs: not allowed with --wandb"),
        ("watch runs", "runs: no run there, nor in a folder directly below"),
        ("watch --sweep=fig3 runs/a", "runs/a: give run folders, or --sweep NAME"),
        ("watch seed=0", "seed=0: give run folders, or --sweep NAME"),
        ("regime", "no run in runs"),
        ("archive --runs=runs", "no finished run in runs"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "empty.csv.xz").touch()
    with pytest.raises(SystemExit) as stop:
        run_command(*words.split())
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "empty.csv.xz"}
