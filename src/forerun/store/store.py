"""The model store: list, open, copy and remove models, and begin to write one (spec 07 CFG, CAT).

Reading takes no lock. Manifests and blobs appear whole, by rename, and blobs never change; so a
reader that loses a race against a removal gets a clear error, never half of anything.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forerun.base.errors import NotFoundError, RequestError, StoreError
from forerun.base.paths import sync_folder
from forerun.base.shown import shown
from forerun.store.blobs import Blob, Blobs, Digest, Progress
from forerun.store.collect import collect
from forerun.store.downloads import Downloads
from forerun.store.folders import StoreFolders
from forerun.store.hold import Hold
from forerun.store.manifest import Manifest
from forerun.store.names import ModelName
from forerun.store.stored import StoredModel
from forerun.store.writer import StoreWriter


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list. `damage` says why a model cannot be opened, "" if it can."""

    name: ModelName
    digest: Digest
    size: int
    modified_at: float  # seconds since the epoch
    damage: str = ""


class Store:
    """The models under one folder, which need not exist yet. StoreError if it is no folder."""

    def __init__(self, root: Path) -> None:
        self.folders = StoreFolders(root)
        self.folders.check()
        self.blobs = Blobs(self.folders.blobs)
        self.downloads = Downloads(self.folders)

    def exists(self, name: ModelName) -> bool:
        """Whether there is a model of this name."""
        return name.path(self.folders.manifests).is_file()

    def get(self, name: ModelName) -> StoredModel:
        """Open a model. NotFoundError if there is none, StoreError if its manifest is damaged."""
        data = self._manifest_bytes(name)
        where = f"manifest of {name}"
        try:
            manifest = Manifest.decode(data, where)
        except StoreError as reason:
            raise StoreError(f"{reason}; pull or create the model again") from None
        return StoredModel(name, Digest.of(data), manifest, self.blobs)

    def digest(self, name: ModelName) -> Digest | None:
        """What `name` stands for, damaged or not; None if there is no such model."""
        try:
            return Digest.of(self._manifest_bytes(name))
        except NotFoundError:
            return None

    def modified_at(self, name: ModelName) -> float:
        """When the model got this name, in seconds since the epoch. NotFoundError if it has not."""
        try:
            return name.path(self.folders.manifests).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            raise _not_found(name) from None
        except OSError as reason:
            raise self.folders.unreadable(reason) from None

    def entries(self) -> list[Entry]:
        """All models, newest first; damaged ones too, so that they can be removed."""
        found = [entry for name in self._names() if (entry := self._entry(name)) is not None]
        return sorted(found, key=lambda entry: (-entry.modified_at, entry.name))

    @contextmanager
    def importing(self) -> Iterator[StoreWriter]:
        """Write a model. What the writer wrote or keeps is collected by nobody inside the `with`.

        One for each import; it may be used by one thread at a time.
        """
        hold = Hold(self.folders)
        writer = StoreWriter(self.folders, hold)
        try:
            yield writer
        finally:
            hold.release()
        if writer.replaced:
            self.collect()

    def copy(self, source: ModelName, destination: ModelName) -> None:
        """Give a model a second name; no blob is copied."""
        if destination.on_hub:
            raise RequestError(
                f"{shown(str(destination))} stands for a repository; give the copy a name without "
                f"a host"
            )
        with self.importing() as writer:
            writer.publish_manifest(destination, self.get(source).manifest)

    def delete(self, name: ModelName) -> None:
        """Remove a model, damaged or not, and the blobs that only it named."""
        if not self.exists(name):
            raise _not_found(name)
        path = name.path(self.folders.manifests)
        with self.folders.gate():
            try:
                path.unlink()
            except FileNotFoundError:
                raise _not_found(name) from None
            sync_folder(path.parent)
            self._remove_empty(path.parent)
            collect(self.folders)

    def damaged(self, name: ModelName, progress: Progress | None = None) -> tuple[Blob, ...]:
        """Read a whole model through; the blobs that are missing or not what they should be."""
        blobs = self.get(name).manifest.blobs
        total = sum(blob.size for blob in blobs)
        completed = 0

        def advance(count: int) -> None:
            nonlocal completed
            completed += count
            if progress is not None:
                progress(completed, total)

        found = []
        for blob in blobs:
            try:
                self.blobs.verify(blob, advance)
            except StoreError:
                found.append(blob)
        return tuple(found)

    def collect(self) -> int:
        """Remove blobs that nothing names or holds; the bytes freed."""
        with self.folders.gate():
            return collect(self.folders)

    def _manifest_bytes(self, name: ModelName) -> bytes:
        path = name.path(self.folders.manifests)
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise _not_found(name) from None
        except OSError as reason:
            raise self.folders.unreadable(reason) from None

    def _names(self) -> Iterator[ModelName]:
        root = self.folders.manifests
        for parent, _, files in os.walk(root, onerror=self._refuse):
            for file in files:
                name = ModelName.from_path(Path(parent, file).relative_to(root).parts)
                if name is not None:
                    yield name

    def _refuse(self, reason: OSError) -> None:
        """A folder that is not there, or no longer, holds nothing; another one might."""
        if not isinstance(reason, FileNotFoundError):
            raise self.folders.unreadable(reason)

    def _entry(self, name: ModelName) -> Entry | None:
        """None if it was removed meanwhile."""
        try:
            modified_at = self.modified_at(name)
            data = self._manifest_bytes(name)
        except NotFoundError:
            return None
        try:
            size = Manifest.decode(data, f"manifest of {name}").size
        except StoreError as reason:
            return Entry(name, Digest.of(data), 0, modified_at, str(reason))
        return Entry(name, Digest.of(data), size, modified_at)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.folders.manifests and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def _not_found(name: ModelName) -> NotFoundError:
    return NotFoundError(
        f"model {shown(str(name))} not found; `forerun list` shows what is here, "
        f"`forerun pull` fetches more"
    )
