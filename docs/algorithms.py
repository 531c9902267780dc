"""Write docs/algorithms.md from the presets, docs/algorithms.yaml and docs/algorithms.template."""

from pathlib import Path

import yaml

import rec_experiments

DOCS = Path(__file__).parent
PRESETS = DOCS.parent / "conf" / "algo"
PARTS = {"gradient": 0, "mask M": 1, "extra loss": 2}  # columns; a preset's other parts are common
SHORTER = {
    "Σ M · ": "",
    "∇log π_θ · ": "",
    " where A > 0": " (+)",
    " where A < 0": " (−)",
    "one-side, keeps ": "",
    "two-side, keeps ": "",
    "none, keeps every token": "",
}


def page() -> str:
    """Return the page with a row for each preset.

    Raises SystemExit if a preset has no line in algorithms.yaml, or a line no preset.
    """
    notes = yaml.safe_load((DOCS / "algorithms.yaml").read_text())
    if missing := sorted({path.stem for path in PRESETS.glob("*.yaml")} ^ set(notes)):
        raise SystemExit(f"docs/algorithms.yaml and conf/algo differ: {', '.join(missing)}")
    rows = [row(name, note["effect"]) for name, note in notes.items()]
    template = (DOCS / "algorithms.template").read_text()
    return template.replace("{presets}", "\n".join(rows)).replace("{count}", str(len(rows)))


def row(name: str, effect: str) -> str:
    """Return a preset's line: its formula in three cells, what it reads, source and effect."""
    algorithm = rec_experiments.algorithm(name)
    formula = ["", "", ""]
    for line in algorithm.describe().splitlines():
        part, _, words = line.partition(": ")
        if part in PARTS:
            formula[PARTS[part]] = shorter(words).replace("|", r"\|")
    needs = algorithm.parts.needs
    reads = [*sorted(needs.logps), *(["batch"] if needs.whole_batch else [])]
    source = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())["algo"]["source"]
    return f"| `{name}` | {' | '.join(formula)} | {', '.join(reads)} | {source} | {effect} |"


def shorter(words: str) -> str:
    """Return the words of a formula without what the page says once for all presets."""
    for old, new in SHORTER.items():
        words = words.replace(old, new)
    return words


if __name__ == "__main__":
    (DOCS / "algorithms.md").write_text(page())
