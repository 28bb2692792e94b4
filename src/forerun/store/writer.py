"""Writing a model: blobs in any order, the manifest last (spec 07 CFG-6, CAT-6)."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from forerun.base.errors import RequestError
from forerun.base.paths import replacing, sync_folder
from forerun.store.blobs import Blob, Blobs, Digest
from forerun.store.folders import TEMPORARY, StoreFolders
from forerun.store.hold import Hold
from forerun.store.manifest import Layer, Manifest, ModelConfig
from forerun.store.names import ModelName


class BlobFile:
    """A blob that is being written; what it is called is known at its end."""

    def __init__(self, folders: StoreFolders, hold_id: str, expected: Digest | None = None) -> None:
        self._folders = folders
        self._expected = expected
        self._hasher = hashlib.sha256()
        self._size = 0
        self._blob: Blob | None = None
        with folders.writing():
            folders.blobs.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folders.blobs, prefix=f"{TEMPORARY}{hold_id}-")
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "wb")

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; returns how many."""
        view = memoryview(data).cast("B")
        with self._folders.writing():
            self._file.write(view)
        self._hasher.update(view)
        self._size += view.nbytes
        return view.nbytes

    @property
    def blob(self) -> Blob:
        """What was written; there once the `with` that gave this file has ended."""
        assert self._blob is not None, "the blob is still being written"
        return self._blob

    def finish(self, hold: Hold) -> None:
        """Flush to disk, hold, and put in place, over an equal blob that may have decayed.

        RequestError if it is not what was expected.
        """
        blob = Blob(Digest(self._hasher.hexdigest()), self._size)
        if self._expected not in (None, blob.digest):
            raise RequestError(
                f"the {self._size} bytes that came are {blob.digest} and not {self._expected}; "
                f"send them again"
            )
        with self._folders.writing():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        hold.add([blob.digest])
        with self._folders.writing():
            self._place(Blobs(self._folders.blobs), blob)
        self._blob = blob

    def _place(self, blobs: Blobs, blob: Blob) -> None:
        try:
            os.replace(self._temporary, blobs.path(blob.digest))
        except PermissionError:  # Windows: a runner has the equal blob mapped
            if blobs.size(blob.digest) != blob.size:
                raise
            self._temporary.unlink()
        sync_folder(blobs.folder)

    def discard(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError):  # on a full disk closing fails again: it writes what is buffered
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class StoreWriter:
    """What one import writes. Nothing it wrote is collected before it ends; see `Store.importing`.

    If it ends without `publish`, the store shows no trace of it, and finished blobs stay until the
    next collection.
    """

    def __init__(self, folders: StoreFolders, hold: Hold) -> None:
        self._folders = folders
        self._hold = hold
        self._blobs = Blobs(folders.blobs)
        self.replaced = False  # whether a manifest gave way, and its blobs may be garbage

    @contextmanager
    def blob(self, *, expected: Digest | None = None) -> Iterator[BlobFile]:
        """A new blob, to be written inside the `with`; its `blob` is known after it.

        Bytes other than those of the digest `expected` are a RequestError.
        """
        file = BlobFile(self._folders, self._hold.id, expected)
        try:
            yield file
            file.finish(self._hold)
        except BaseException:
            file.discard()
            raise

    def add_bytes(self, data: bytes) -> Blob:
        """Store `data`."""
        with self.blob() as file:
            file.write(data)
        return file.blob

    def add_layer(self, media_type: str, data: bytes, name: str = "") -> Layer:
        """Store a small layer whole."""
        return Layer(media_type, self.add_bytes(data), name)

    def keep(self, blobs: Iterable[Blob]) -> None:
        """Count on blobs that another model has. StoreError if one is gone or cut short."""
        kept = list(blobs)
        self._hold.add(blob.digest for blob in kept)
        for blob in kept:
            self._blobs.file(blob)

    def publish(self, name: ModelName, config: ModelConfig, layers: Sequence[Layer]) -> Manifest:
        """Make the model appear under `name`, whole, in place of what was there."""
        manifest = Manifest(self.add_bytes(config.encode()), tuple(layers))
        self.publish_manifest(name, manifest)
        return manifest

    def publish_manifest(self, name: ModelName, manifest: Manifest) -> None:
        """Make a manifest appear under `name`; every blob it names must be in the store."""
        self.keep(manifest.blobs)
        path = name.path(self._folders.manifests)
        with self._folders.gate():
            self.replaced |= path.exists()
            with replacing(path) as file:
                file.write(manifest.encode())
