"""Reads rows from a local .jsonl, .json or .parquet file, or from the Hugging Face hub.

Each row comes with its place, such as `data/test.jsonl line 7`, for error messages.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rec_experiments import files
from rec_experiments.errors import UserError, first_line
from rec_experiments.types import Settings

Row = Mapping[str, Any]
Located = tuple[str, Row]  # where a row comes from, and the row

HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>\S+))?")  # OWNER/NAME[/FILE]
SUFFIXES = (".jsonl", ".json", ".parquet")


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
        """The rows of the file `path`, of the split's file in the folder `path`, or of the hub.

        Raises UserError if there are none, and as `read_file` does.
        """
        if path is None:
            return self._from_hub(name)
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
    """The rows of a file: one JSON object per line, one JSON list of objects, or a parquet table.

    Skips empty lines. Raises UserError that names the file, and the line or item if there is one:
    unreadable file, unknown suffix, malformed JSON, a row that is no object, no row.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: cannot be read: its name must end in {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".parquet":
            rows = [(f"{path} row {i}", row) for i, row in enumerate(_parquet(path), start=1)]
        else:
            text = path.read_text(encoding="utf-8")
            rows = _lines(path, text) if path.suffix == ".jsonl" else _items(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {_reason(error)}") from None
    if not rows:
        raise UserError(f"{path}: holds no data")
    for where, row in rows:
        if not isinstance(row, dict):
            raise UserError(f"{where}: a JSON object is expected")
    return rows


def text_of(row: Row, field: str, where: str, as_json: bool = False) -> str:
    """The text in a field; `prompt.0.content` addresses nested objects and lists.

    as_json: write a value that is no text as JSON. Raises UserError that names the place if the
    field is missing or its text cannot be encoded.
    """
    value: Any = row
    for part in field.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            found = f"; found {', '.join(value)}" if isinstance(value, dict) else ""
            raise UserError(f"{where}: field {field!r} is missing{found}") from None
    if as_json and not isinstance(value, str | None):
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


def _lines(path: Path, text: str) -> list[Located]:
    lines = ((f"{path} line {i}", line) for i, line in enumerate(text.split("\n"), start=1))
    return [(where, _parse(line, where)) for where, line in lines if line.strip()]


def _items(path: Path, text: str) -> list[Located]:
    rows = _parse(text, str(path))
    if not isinstance(rows, list):
        raise UserError(f"{path}: a JSON list of objects is expected")
    return [(f"{path} item {i}", row) for i, row in enumerate(rows, start=1)]


def _parquet(path: Path) -> list[Row]:
    import pyarrow as pa  # type: ignore[import-untyped]  # slow
    from pyarrow import parquet

    try:
        return parquet.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise UserError(
            f"{path}: cannot be read: not a parquet table: {first_line(error)}"
        ) from None


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8 text"
