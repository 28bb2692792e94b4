"""Removing what no manifest names and no running import holds (spec 07 CAT-6)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from forerun.store.folders import TEMPORARY, StoreFolders
from forerun.store.hold import Held

_NAMED = re.compile(rb"sha256[:-]([0-9a-f]{64})")


def collect(folders: StoreFolders) -> int:
    """Remove unreferenced blobs and the temporary files of dead imports; the bytes freed.

    To be called with the gate held. Holds are read before manifests: an import writes its manifest
    before it lets go, so what it wrote is seen in one place or the other.
    """
    held = Held.read(folders)
    wanted = held.hexes | _named_by_manifests(folders)
    freed = 0
    for file in _files(folders.blobs):
        if file.name.startswith(TEMPORARY):
            if file.name.removeprefix(TEMPORARY).split("-")[0] not in held.ids:
                freed += _remove(file)
        elif file.name.startswith("sha256-") and file.name.removeprefix("sha256-") not in wanted:
            freed += _remove(file)
    return freed


def _named_by_manifests(folders: StoreFolders) -> set[str]:
    """Every digest that stands anywhere in a manifest, so that a damaged one loses nothing more.

    Half-written manifests are removed: only who holds the gate writes them.
    """
    named: set[str] = set()
    for file in _files(folders.manifests):
        if file.name.startswith(TEMPORARY):
            _remove(file)
        else:
            named.update(digits.decode() for digits in _NAMED.findall(file.read_bytes()))
    return named


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _remove(file: Path) -> int:
    try:
        size = file.stat().st_size
        file.unlink()
    except FileNotFoundError:
        return 0
    except PermissionError:  # Windows: a runner has it mapped; the next collection gets it
        return 0
    return size
