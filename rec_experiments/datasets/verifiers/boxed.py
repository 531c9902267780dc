r"""Finding \boxed{...}, the mark of a final answer in LaTeX; \fbox and \framebox mark it too."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\{")


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{} holds; empty if it is cut off, None if there is none."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    depth = 1
    for brace in re.compile(r"(?<!\\)[{}]").finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    return ""
