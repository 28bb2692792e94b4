"""File locks between processes that end with their holder, however it ends."""

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

if sys.platform == "win32":
    import errno
    import msvcrt
    import time

    # Locked ranges cannot be read by others there; this byte lies past everything written.
    _LOCKED_BYTE = 1 << 40

    def _lock(file: BinaryIO, wait: bool) -> bool:
        while True:
            file.seek(_LOCKED_BYTE)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError as reason:
                if reason.errno not in (errno.EACCES, errno.EDEADLOCK):
                    raise
            else:
                return True
            if not wait:
                return False
            time.sleep(0.05)

else:
    import fcntl

    def _lock(file: BinaryIO, wait: bool) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True


def _is_current(file: BinaryIO, path: Path) -> bool:
    """Whether the file that is open is still the one that the path leads to."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


class FileLock:
    """An open, locked file. The lock excludes other processes and other threads of this one.

    A lock file may be removed by whoever holds it: those who wait notice, and start again.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file

    @classmethod
    def acquire(cls, path: Path) -> "FileLock":
        """Lock `path`, created if absent; waits for another holder."""
        lock = cls._try(path, wait=True)
        assert lock is not None, f"waiting for {path} ended without it"
        return lock

    @classmethod
    def acquire_now(cls, path: Path) -> "FileLock | None":
        """Lock `path`, or None at once where another holds it."""
        return cls._try(path, wait=False)

    @classmethod
    def _try(cls, path: Path, wait: bool) -> "FileLock | None":
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by release
            try:
                if not _lock(file, wait):
                    file.close()
                    return None
                if _is_current(file, path):
                    return cls(path, file)
            except BaseException:
                file.close()
                raise
            file.close()

    def append(self, data: bytes) -> None:
        """Write at the end of the locked file, at once visible to others."""
        self._file.seek(0, os.SEEK_END)
        self._file.write(data)

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up, and with `remove` its file too."""
        if remove and sys.platform != "win32":
            self.path.unlink(missing_ok=True)  # while it is held: a waiter must see it go
        self._file.close()
        if remove and sys.platform == "win32":
            try:
                self.path.unlink(missing_ok=True)
            except PermissionError:
                return  # another has it open, and will remove it

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
