"""Uploaded blobs as the folder that a create imports (08 API-3)."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from forerun.api.ollama.blobs import read_digest
from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.store.blobs import Digest
from forerun.store.inventory import CONFIG
from forerun.store.uploads import Uploads

MAX_NAME_BYTES = 200  # of one part of a file's name
GGUF, SAFETENSORS = ".gguf", ".safetensors"
DRAFT_WANTED = f"{CONFIG} and *{SAFETENSORS}"
WANTED = f"one {GGUF} file, or {DRAFT_WANTED}"


@dataclass(frozen=True, slots=True)
class Files:
    """Checked names and digests. `source` is what a FROM in their folder says."""

    digests: Mapping[str, Digest]
    source: str


def read_files(given: Mapping[str, str]) -> Files:
    """RequestError for a name that leaves the folder, a bad digest, or no model among them."""
    return Files(_digests(given, "files"), _source(given))


def read_draft_files(given: Mapping[str, str]) -> Files:
    """The same for a draft model, which is no GGUF file (07 MF-4)."""
    digests = _digests(given, "draft_files")
    if CONFIG not in given or not any(name.endswith(SAFETENSORS) for name in given):
        raise RequestError(f"draft_files are no draft model; they must be {DRAFT_WANTED}")
    return Files(digests, ".")


def _digests(given: Mapping[str, str], field: str) -> dict[str, Digest]:
    for name in given:
        _check_name(name, field)
    inside = next(
        (n for n in given if any(str(p) in given for p in PurePosixPath(n).parents)), None
    )
    if inside is not None:
        raise RequestError(f"{field} names {shown(inside)} and, as a file, a folder that it is in")
    return {name: read_digest(text) for name, text in given.items()}


@contextmanager
def arranged(files: Files, uploads: Uploads) -> Iterator[Path]:
    """A folder of the files, for the time of the `with`; it holds links, not copies."""
    with (
        uploads.using(list(files.digests.values())),
        tempfile.TemporaryDirectory(prefix="forerun-create-", ignore_cleanup_errors=True) as root,
    ):
        for name, digest in files.digests.items():
            path = Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            _link(uploads.path(digest), path)
        yield Path(root)


def _check_name(name: str, field: str) -> None:
    parts = name.split("/")
    plain = not any(ord(letter) < 32 or letter in "\\:\x7f" for letter in name)
    named = all(part not in ("", ".", "..") for part in parts)
    short = all(len(part.encode()) <= MAX_NAME_BYTES for part in parts) and len(parts) <= 8
    if not (plain and named and short):
        raise RequestError(
            f"{field} names {shown(name)}; it must be a file's name, or a path inside the model's "
            f"folder such as {CONFIG}"
        )


def _source(names: Mapping[str, str]) -> str:
    models = [name for name in names if name.lower().endswith(GGUF)]
    tensors = any(name.endswith(SAFETENSORS) for name in names)
    if len(models) > 1 or (models and tensors):
        raise RequestError(f"files are more than one model; they must be {WANTED}")
    if models:
        return f"./{models[0]}"
    if tensors and CONFIG in names:
        return "."
    if len(names) == 1:
        return f"./{next(iter(names))}"  # a GGUF file has whatever name; its first bytes tell
    raise RequestError(f"files are no model; they must be {WANTED}")


def _link(blob: Path, path: Path) -> None:
    try:
        path.symlink_to(blob)
    except OSError:  # Windows, without the right to make them
        os.link(blob, path)
