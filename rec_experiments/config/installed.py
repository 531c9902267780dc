"""What is installed here, as far as a few milliseconds tell: nothing is imported to find it."""

import os
import sys
from importlib.util import find_spec

GROUP = "rec_experiments"  # of entry points: packages outside of this one (docs/extending.md)
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# In a checkout `conf` stands beside the package, in a wheel inside it.
CONF = next(
    place
    for parent in (PACKAGE, os.path.dirname(PACKAGE))
    if os.path.isdir(place := os.path.join(parent, "conf"))
)
# In a copy of the code: the packages that were copied with it, and the only ones that it sees.
COPIED = os.path.join(PACKAGE, "outside.json")


def distributions() -> dict[str, bytes]:
    """The metadata folder of each distribution on sys.path, named after it and its version, with
    its entry points. Raises OSError where there may be others: in an archive, or a closed folder.
    """
    found: dict[str, bytes] = {}
    for place in filter(os.path.exists, sys.path):
        for name in sorted(os.listdir(place)):
            if name.endswith((".dist-info", ".egg-info")):
                folder = os.path.join(place, name)
                found[folder] = _content(os.path.join(folder, "entry_points.txt"))
    return found


def folders_outside(found: dict[str, bytes]) -> list[str]:
    """The folders of the packages that add to this one. Raises LookupError for one that is not
    where its metadata says."""
    modules = {
        line.partition("=")[2].strip()
        for entries in found.values()
        for line in _section(entries.decode(errors="replace"))
    }
    return [
        folder
        for top in sorted({each.split(".")[0] for each in modules})
        for folder in _folders(top)
    ]


def plugin_folders() -> list[str]:
    """Where Hydra looks for its plugins."""
    places = (os.path.join(place, "hydra_plugins") for place in sys.path)
    return [place for place in places if os.path.isdir(place)]


def _section(entries: str) -> list[str]:
    """The lines of our group."""
    _, _, rest = f"\n{entries}".partition(f"\n[{GROUP}]")
    return [line for line in rest.partition("\n[")[0].splitlines() if "=" in line]


def _folders(package: str) -> list[str]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(package)
    return list(spec.submodule_search_locations)


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""
