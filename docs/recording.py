"""Write docs/figures/run.svg: what `make run` prints from its second time on.

python docs/recording.py
"""

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

FILE = Path(__file__).parent / "figures" / "run.svg"
COMMAND = (sys.executable, "-m", "rec_experiments")
WIDTH = 100  # characters


def recorded() -> str:
    """The terminal of a run, as SVG that loads nothing from elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*COMMAND, "steps=1"], cwd=folder, check=True, capture_output=True)
        done = subprocess.run(COMMAND, cwd=folder, check=True, capture_output=True, text=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(done.stdout, markup=False, highlight=False)
    svg = console.export_svg(title="make run", unique_id="run")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def words(svg: str) -> str:
    """The text of a recording, without the times that are left."""
    text = "\n".join(re.findall(r">([^<>]+)</text>", svg)).replace("&#160;", " ")
    return re.sub(r"\d+ s left", "", text)


if __name__ == "__main__":
    FILE.write_text(recorded(), encoding="utf-8")
