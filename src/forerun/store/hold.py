"""The blobs that a running import counts on, so that nobody collects them (spec 07 CAT-6).

A hold is a file of digests, locked for the life of the import. It is written under the gate before
the import looks whether a blob is there; a collection reads it under the gate before it removes
any. So either the collection sees the hold, or the import sees that the blob is gone. A hold whose
lock is free belongs to a dead process and counts for nothing.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from forerun.store.blobs import Digest
from forerun.store.folders import StoreFolders
from forerun.store.locking import FileLock


class Hold:
    """The hold of one import. `id` marks its temporary files."""

    def __init__(self, folders: StoreFolders) -> None:
        self._folders = folders
        self.id = os.urandom(8).hex()
        self._held: set[Digest] = set()
        with folders.gate():  # created and locked in one step, as a collection sees it
            self._lock = FileLock.acquire(folders.holds / self.id)

    def add(self, digests: Iterable[Digest]) -> None:
        """From now on none of `digests` is collected."""
        new = set(digests) - self._held
        if not new:
            return
        with self._folders.gate():
            self._lock.append("".join(f"{digest.hex}\n" for digest in sorted(new)).encode())
        self._held |= new

    def release(self) -> None:
        """What no manifest names may go now."""
        self._lock.release(remove=True)


@dataclass(frozen=True, slots=True)
class Held:
    """All running imports: their ids, and the hexadecimal digits of what they hold."""

    ids: frozenset[str]
    hexes: frozenset[str]

    @classmethod
    def read(cls, folders: StoreFolders) -> "Held":
        """Read under the gate; holds of dead processes are removed on the way."""
        ids: set[str] = set()
        hexes: set[str] = set()
        for file in sorted(folders.holds.iterdir()) if folders.holds.is_dir() else []:
            lock = FileLock.acquire_now(file)
            if lock is not None:
                lock.release(remove=True)
                continue
            try:
                hexes.update(file.read_text().split())
            except FileNotFoundError:  # released just now, so its manifest is there to be read
                continue
            ids.add(file.name)
        return cls(frozenset(ids), frozenset(hexes))
