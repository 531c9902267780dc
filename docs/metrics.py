"""Write docs/metrics.md from rec_experiments/runs/metrics.yaml.

python docs/metrics.py
"""

from pathlib import Path

from rec_experiments.runs.metrics import catalogue

PAGE = Path(__file__).with_suffix(".md")
INTRODUCTION = """# Metrics

`metrics.jsonl` has a row for each gradient step. Row s describes the mini-batch of step s
and, if there was one, the evaluation after s steps; row 0 is the initial policy. Expected
values come from published runs where there are any ([the regime](miniature.md#the-regime)),
otherwise from experience; `python -m rec_experiments regime` compares a run with published
values. To add one, give its value in `training/metrics.py`, describe it in
`runs/metrics.yaml`, and run `make pages`.
"""
HEAD = "| key | title | meaning | unit | expected |\n| --- | --- | --- | --- | --- |"


def page() -> str:
    lines = [INTRODUCTION]
    for topic, metrics in catalogue().items():
        lines += [f"## {topic.capitalize()}\n", HEAD]
        lines += [f"| `{key}` | {' | '.join(metric)} |" for key, metric in metrics.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
