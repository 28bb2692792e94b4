"""The part of the store where sources are fetched to, before they are imported.

What is finished here counts when an interrupted pull is run again (spec 07 CAT-4, CAT-5).
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.store.folders import StoreFolders
from forerun.store.locking import FileLock

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_LOCK = ".lock"


class Downloads:
    """Folders by key, each used by one process at a time."""

    def __init__(self, folders: StoreFolders) -> None:
        self._folders = folders
        self._root = folders.downloads

    @contextmanager
    def folder(self, key: str) -> Iterator[Path]:
        """The folder of `key` for the time of the `with`; waits while another process has it."""
        assert _KEY.fullmatch(key), f"{key!r} is no key for a download"
        folder = self._root / key
        with self._folders.writing():
            lock = FileLock.acquire(self._root / f"{key}{_LOCK}")
        with lock:
            with self._folders.writing():
                folder.mkdir(exist_ok=True)
            yield folder

    def discard(self, key: str) -> None:
        """Remove what was fetched for `key`, once it is imported and its folder let go."""
        lock = FileLock.acquire(self._root / f"{key}{_LOCK}")
        try:
            shutil.rmtree(self._root / key, ignore_errors=True)
        finally:
            lock.release(remove=True)
