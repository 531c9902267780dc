"""Reads rows from a local file, or from the Hugging Face hub.

Each row comes with its place, such as `data/test.jsonl line 7`, for error messages.
"""

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rec_experiments.common import files, live
from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.pieces import Settings

Row = Mapping[str, Any]
Located = tuple[str, Row]  # where a row comes from, and the row

HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>\S+))?")  # OWNER/NAME[/FILE]


class Source(Settings):
    """One split of a data set.

    hub: OWNER/NAME on the Hugging Face hub, or OWNER/NAME/FILE for one file of it, with its
    configuration `subset` and its split `split`. file: the split's file in a local folder.
    """

    hub: str | None
    subset: str | None
    split: str
    file: str

    def check(self, name: str, path: str | None) -> None:
        """Raise ValueError if there is no place to read from. name: of this source's key."""
        if self.hub is None and path is None:
            raise ValueError(
                "path=null: must be a local folder or file, because no hub name is given"
            )
        if self.hub is not None and not HUB_NAME.fullmatch(self.hub):
            raise ValueError(
                f"{name}.hub={self.hub}: must be OWNER/NAME or OWNER/NAME/FILE on the Hugging Face "
                "hub, or null; local files go into dataset.path"
            )

    def read(self, name: str, path: str | None) -> list[Located]:
        """The rows of the file `path`, of the split's file in the folder `path`, of an object of
        this process, or of the hub.

        Raises UserError if there are none, and as `read_file` does.
        """
        if path is None:
            return self._from_hub(name)
        if live.is_live(path):
            rows = live.find(path, "dataset.path")[name]
            return [(f"row {i} of the {name} rows", row) for i, row in enumerate(rows, start=1)]
        place = Path(path).expanduser()
        if place.is_dir():
            place /= self.file
            if not place.is_file():
                raise UserError(f"dataset.path={path}: the folder has no {self.file}")
        elif not place.is_file():
            raise UserError(
                f"dataset.path={path}: no such folder or file; give a folder with {self.file}"
            )
        return read_file(place)

    def _from_hub(self, name: str) -> list[Located]:
        import datasets  # slow

        found = HUB_NAME.fullmatch(self.hub or "")
        assert found is not None, self.hub  # see check()
        silence = files.hub_silence()
        try:
            rows = datasets.load_dataset(
                found["repository"], self.subset, data_files=found["file"], split=self.split
            )
        except Exception as error:
            raise UserError(
                f"dataset.{name}.hub={self.hub}: cannot be fetched from the Hugging Face hub "
                f"({silence or first_line(error)}); give a local folder with {self.file}: "
                "dataset.path=FOLDER"
            ) from error
        return [(f"{self.hub} {self.split} row {i}", row) for i, row in enumerate(rows, start=1)]


def read_file(path: Path) -> list[Located]:
    """The rows of a file: JSON objects, one per line or in one list; a parquet table; or a CSV file
    with a header, whose values are texts.

    The types of each row stay its own: the library `datasets` would unify them over all rows, and
    add keys to nested answers. Skips empty lines. Raises UserError that names the file, and the
    line or item if there is one: unreadable file, unknown suffix, malformed JSON, a row that is no
    object, no row.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: cannot be read: its name must end in {', '.join(SUFFIXES)}")
    try:
        rows = SUFFIXES[path.suffix](path)
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot be read: not UTF-8 text") from None
    except (OSError, ValueError, csv.Error) as error:  # of pyarrow, too
        raise UserError(f"{path}: cannot be read: {first_line(error)}") from None
    if not rows:
        raise UserError(f"{path}: holds no data")
    for where, row in rows:
        if not isinstance(row, dict):
            raise UserError(f"{where}: a JSON object is expected")
    return rows


def _json(path: Path) -> list[Located]:
    text = path.read_text(encoding="utf-8-sig")  # without a mark of byte order
    if text.lstrip().startswith("["):
        return [(f"{path} item {i}", row) for i, row in enumerate(_parse(text, str(path)), start=1)]
    lines = ((f"{path} line {i}", line) for i, line in enumerate(text.split("\n"), start=1))
    return [(where, _parse(line, where)) for where, line in lines if line.strip()]


def _csv(path: Path) -> list[Located]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return [(f"{path} row {i}", row) for i, row in enumerate(csv.DictReader(file), start=1)]


def _parquet(path: Path) -> list[Located]:
    from pyarrow import parquet  # type: ignore[import-untyped]  # slow

    rows = parquet.read_table(path).to_pylist()
    return [(f"{path} row {i}", row) for i, row in enumerate(rows, start=1)]


SUFFIXES = {".jsonl": _json, ".json": _json, ".csv": _csv, ".parquet": _parquet}


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None


def text_of(row: Row, field: str, where: str, as_json: bool = False) -> str:
    """The text in a field; `prompt.0.content` addresses nested objects and lists. A finite number
    counts as text.

    as_json: write any other value that is no text as JSON. Raises UserError that names the place if
    the field is missing or its text cannot be encoded.
    """
    value: Any = row
    for part in field.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            found = f"; found {', '.join(value)}" if isinstance(value, dict) else ""
            raise UserError(f"{where}: field {field!r} is missing{found}") from None
    is_number = type(value) in (int, float) and math.isfinite(value)
    if is_number or (as_json and not isinstance(value, str | None)):
        value = json.dumps(value, ensure_ascii=False, default=str)
    if not isinstance(value, str):
        raise UserError(f"{where}: field {field!r} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: field {field!r} holds half of a character (a lone surrogate)"
        ) from None
    return value
