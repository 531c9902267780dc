"""Pieces of HTML. They escape all text; arguments called HTML are inserted as they are."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def policy_hash(text: str) -> str:
    """The hash by which the page's content security policy allows a style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def script_json(value: Any) -> str:
    """JSON that cannot close the script element around it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def details(summary: str, body: str) -> str:
    """A part that opens on a click. body: HTML."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def text_details(summary: str, text: str, title: str) -> str:
    """Preformatted text that opens on a click."""
    return details(summary, scroll(f"<pre>{escape(text)}</pre>", title))


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """kind: CSS classes."""
    return "".join(f'<p class="{kind}">{escape(text)}</p>' for text in texts if text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """head: texts. rows: cells as HTML."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def scroll(inner: str, label: str, kind: str = "", name: str = "") -> str:
    """A frame that scrolls, also with the keyboard. inner: HTML."""
    identity = f' id="{name}"' if name else ""
    return (
        f'<div class="scroll {kind}"{identity} role="region" tabindex="0" '
        f'aria-label="{escape(label)}">{inner}</div>'
    )


def td(text: str, kind: str = "") -> str:
    """A cell. kind: CSS classes."""
    return f'<td class="{kind}">{escape(text)}</td>'


def sortable(value: str | int | float | None, kind: str = "", shown: str | None = None) -> str:
    """A cell with the value to sort by. shown: a text other than the value's own."""
    plain = "" if value is None else str(value)
    if shown is None:
        shown = f"{value:.3f}" if isinstance(value, float) else plain
    return f'<td class="{kind}" data-sort="{escape(plain)}">{escape(shown)}</td>'
