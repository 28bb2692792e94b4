"""What the FROM and DRAFT of a Modelfile stand for (spec 07 MF-4, MF-8)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.base.errors import RequestError, UnsupportedError
from forerun.base.shown import shown
from forerun.store.catalogue import find
from forerun.store.inventory import is_model_folder
from forerun.store.names import ModelName
from forerun.store.store import Store

_GGUF_MAGIC: Final = b"GGUF"
_WANTED: Final = "a folder with config.json and *.safetensors"


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder with config.json and safetensors files."""

    folder: Path


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A GGUF file."""

    file: Path


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model by name: its layers are reused. One that is not in the store is pulled first."""

    name: ModelName
    in_store: bool


def recognise(text: str, base: Path, store: Store) -> FolderSource | GgufSource | ModelSource:
    """What `FROM text` means in a Modelfile that lies in `base`.

    A path that is a model wins over a name. RequestError if it is neither.
    """
    path = resolve(text, base)
    if path.is_dir() and is_model_folder(path):
        return FolderSource(path)
    if path.is_file() and _is_gguf(path):
        return GgufSource(path)
    named = _named(text, path, store)
    if named is not None:
        return named
    if not path.exists():
        raise RequestError(f"FROM {shown(text)}: there is no {path} and no model of that name")
    missing = "a Modelfile without a FROM line, or with " if text == "." else ""
    raise RequestError(
        f"{missing}FROM {shown(text)} is not a supported model directory; it must be {_WANTED}, a "
        f"GGUF file, hf.co/ORG/NAME, or a model of the store or the catalogue"
    )


def draft_folder(text: str, base: Path) -> Path:
    """The folder that `DRAFT text` names, against the Modelfile's own folder."""
    path = resolve(text, base)
    if not is_model_folder(path):
        raise RequestError(f"DRAFT {shown(text)} must be {_WANTED}; {path} is not")
    return path


def resolve(text: str, base: Path) -> Path:
    """`text` as a path: `~` is the home folder, relative ones start at `base`."""
    try:
        return base / Path(text).expanduser()
    except RuntimeError:  # no such user: then it is a file's name
        return base / text


def _named(text: str, path: Path, store: Store) -> ModelSource | None:
    try:
        name = ModelName.parse(text)
    except RequestError:
        return None
    except UnsupportedError:
        if path.exists() or text.startswith((".", "~")) or Path(text).is_absolute():
            return None  # written as a path, and no model: the reader of the error meant that
        raise
    if store.exists(name):
        return ModelSource(name, in_store=True)
    if name.on_hub or find(name) is not None:
        return ModelSource(name, in_store=False)
    return None


def _is_gguf(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError as reason:
        raise RequestError(f"cannot read {path}: {reason.strerror}") from None
