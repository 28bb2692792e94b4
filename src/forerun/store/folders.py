"""Where things lie in a store, and the lock that guards its few changes.

- manifests/<host>/<namespace>/<model>/<tag>: one small file a model
- blobs/sha256-<hex>: everything the manifests name
- downloads/: what a pull fetched and has not imported yet
- locks/: the gate, and a hold for each running import
"""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forerun.base.errors import StoreError
from forerun.store.locking import FileLock

TEMPORARY = ".tmp-"  # starts the name of a file that is being written; base.paths does the same


@dataclass(frozen=True, slots=True)
class StoreFolders:
    """The folders under one root."""

    root: Path

    @property
    def manifests(self) -> Path:
        """Manifests by name."""
        return self.root / "manifests"

    @property
    def blobs(self) -> Path:
        """Blobs by digest."""
        return self.root / "blobs"

    @property
    def downloads(self) -> Path:
        """Sources that are being fetched."""
        return self.root / "downloads"

    @property
    def holds(self) -> Path:
        """The files of running imports."""
        return self.root / "locks" / "holds"

    def check(self) -> None:
        """Raise StoreError if the root is there and cannot be a store. It need not be there."""
        try:
            is_folder = stat.S_ISDIR(self.root.stat().st_mode)
        except FileNotFoundError:
            return
        except OSError as reason:
            raise self.unreadable(reason) from None
        if not is_folder:
            raise StoreError(
                f"{self.root} is a file, and the model store must be a folder; set FORERUN_MODELS "
                f"to a folder"
            )

    def unreadable(self, reason: OSError) -> StoreError:
        """The error for a file or folder of the store that the system does not let us read."""
        path = reason.filename or self.root
        return StoreError(
            f"cannot read {path}: {reason.strerror or reason}; allow reading there, or set "
            f"FORERUN_MODELS to another folder"
        )

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Nobody else changes manifests, holds or the set of blobs meanwhile. Keep it short.

        Not to be entered twice by one thread.
        """
        with self.writing(), FileLock.acquire(self.root / "locks" / "gate"):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What the system refuses while the store is written is said with a way out."""
        try:
            yield
        except OSError as reason:
            raise StoreError(
                f"cannot write to the store at {self.root}: {reason.strerror or reason}; make "
                f"room and allow writing there, or set FORERUN_MODELS to another folder"
            ) from None
