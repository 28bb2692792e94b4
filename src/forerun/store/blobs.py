"""Content-addressed files: a blob's name is the digest of its bytes (spec 07 CFG-3)."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from forerun.base.errors import RequestError, StoreError
from forerun.base.shown import shown

CHUNK_BYTES = 1 << 20
Progress = Callable[[int, int], None]  # completed and total, in bytes

_HEX = re.compile(r"[0-9a-f]{64}")
_REMEDY = "pull or create the model again"


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A sha256; its text is `sha256:` and 64 hexadecimal digits, so no digest leaves the store."""

    hex: str

    def __post_init__(self) -> None:
        if not _HEX.fullmatch(self.hex):
            raise RequestError(f"{shown(self.hex)} is not a digest; it must be 64 digits 0-9, a-f")

    @classmethod
    def parse(cls, text: str) -> "Digest":
        """The digest written `sha256:<hex>`."""
        scheme, _, digits = text.partition(":")
        if scheme != "sha256" or not _HEX.fullmatch(digits):
            raise RequestError(f"{shown(text)} is not a digest; it must be sha256:<64 hex digits>")
        return cls(digits)

    @classmethod
    def of(cls, data: bytes) -> "Digest":
        """The digest of `data`."""
        return cls(hashlib.sha256(data).hexdigest())

    @property
    def file_name(self) -> str:
        """How the blob is called on disk; ':' is not allowed everywhere."""
        return f"sha256-{self.hex}"

    def __str__(self) -> str:
        return f"sha256:{self.hex}"


@dataclass(frozen=True, slots=True)
class Blob:
    """What is in the store under a digest."""

    digest: Digest
    size: int


class Blobs:
    """The blobs of a store, to read. Needs no lock: blobs appear whole and never change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: Digest) -> Path:
        """Where the blob is, or would be."""
        return self.folder / digest.file_name

    def size(self, digest: Digest) -> int | None:
        """Its bytes, None if it is not there."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def file(self, blob: Blob) -> Path:
        """The path of a blob that is there, in full length."""
        found = self.size(blob.digest)
        if found is None:
            raise self._missing(blob)
        if found != blob.size:
            raise StoreError(
                f"blob {self.path(blob.digest)} has {found} bytes instead of {blob.size}; {_REMEDY}"
            )
        return self.path(blob.digest)

    def open(self, blob: Blob) -> BinaryIO:
        """A blob of the right length, opened; closing it is the caller's."""
        try:
            return open(self.file(blob), "rb")
        except FileNotFoundError:  # another process removed it just now
            raise self._missing(blob) from None

    def read(self, blob: Blob) -> bytes:
        """All bytes of a blob, checked against its digest."""
        with self.open(blob) as file:
            data = file.read()
        self._compare(blob.digest, Digest.of(data))
        return data

    def _missing(self, blob: Blob) -> StoreError:
        return StoreError(f"blob {blob.digest} is missing from {self.folder}; {_REMEDY}")

    def verify(self, blob: Blob, progress: Callable[[int], None] | None = None) -> None:
        """Read a blob through; StoreError if it is not what its digest says.

        `progress` hears how many more bytes were read.
        """
        hasher = hashlib.sha256()
        with self.open(blob) as file:
            while chunk := file.read(CHUNK_BYTES):
                hasher.update(chunk)
                if progress is not None:
                    progress(len(chunk))
        self._compare(blob.digest, Digest(hasher.hexdigest()))

    def __iter__(self) -> Iterator[Blob]:
        """Every blob there is, in no order."""
        if not self.folder.is_dir():
            return
        for file in self.folder.iterdir():
            scheme, _, digits = file.name.partition("-")
            if scheme == "sha256" and _HEX.fullmatch(digits):
                size = self.size(Digest(digits))
                if size is not None:
                    yield Blob(Digest(digits), size)

    def _compare(self, named: Digest, actual: Digest) -> None:
        if named != actual:
            raise StoreError(f"blob {self.path(named)} is damaged: it is {actual}; {_REMEDY}")
