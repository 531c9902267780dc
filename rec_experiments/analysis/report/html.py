"""Pieces of HTML. All text that comes in is escaped, but for what is called HTML."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def policy_hash(text: str) -> str:
    """By which the page's policy knows its own style or script, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def collapsed(summary: str, text: str, title: str) -> str:
    """Text that opens on a click."""
    body = scroll(f"<pre>{escape(text)}</pre>", title)
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """head: plain text. rows: cells as HTML."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"


def scroll(inner: str, label: str, kind: str = "", name: str = "") -> str:
    """A frame that scrolls, with the keyboard too."""
    identity = f' id="{name}"' if name else ""
    return (
        f'<div class="{f"scroll {kind}".strip()}"{identity} role="region" tabindex="0" '
        f'aria-label="{escape(label)}">{inner}</div>'
    )


def td(text: str, kind: str = "") -> str:
    """A cell. kind: its classes."""
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def sortable(value: str | int | float | None, kind: str, shown: str | None = None) -> str:
    """A cell with the value to sort by. shown: the text, where it is not the value's own."""
    if shown is None:
        shown = f"{value:.3f}" if isinstance(value, float) else plain(value)
    return f'<td class="{kind}" data-sort="{escape(plain(value))}">{escape(shown)}</td>'


def plain(value: str | int | float | None) -> str:
    """A value as text, "" for none."""
    return "" if value is None else str(value)


def data_attributes(values: dict[str, list[str]]) -> str:
    """A list of texts each, as JSON."""
    return "".join(f' data-{key}="{escape(json.dumps(each))}"' for key, each in values.items())
