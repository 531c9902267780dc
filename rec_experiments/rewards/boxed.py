r"""Finding \boxed{...}, the mark of a final answer in LaTeX."""

import re


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{} holds; empty if it is cut off, None if there is none."""
    _, mark, after = text.rpartition("\\boxed{")
    if not mark:
        return None
    depth = 1
    for brace in re.finditer(r"(?<!\\)[{}]", after):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return after[: brace.start()]
    return ""
