"""Blobs that clients upload for a create to come (spec 08 API-3).

An upload is a blob of the store from its last byte on, and until a create has used it no manifest
names it. One hold keeps all such blobs from being collected. A blob leaves it when a create that
used it has succeeded, a day after a client last sent it or asked for it, or when the server ends,
however that happens; the next collection then takes it. An upload under way has a hold of its own,
so that one that was cut off leaves nothing.

A hold only grows: to leave some out, a new one is taken and then the old one released.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forerun.base.errors import RequestError
from forerun.store.blobs import Digest
from forerun.store.hold import Hold
from forerun.store.store import Store
from forerun.store.writer import BlobFile

DAY_S: Final = 86_400.0


class Uploads:
    """The uploads of one server; usable from any thread."""

    def __init__(
        self,
        store: Store,
        *,
        keep_s: float = DAY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keep_s = keep_s
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[Digest, float] = {}
        self._in_use: Counter[Digest] = Counter()
        self._hold: Hold | None = None

    def path(self, digest: Digest) -> Path:
        """Where the blob is."""
        return self._store.blobs.path(digest)

    @contextmanager
    def receive(self, digest: Digest) -> Iterator[BlobFile]:
        """A file for what is to be `digest`; it is in the store once the `with` has ended.

        RequestError, and nothing is left, if the bytes are others.
        """
        with self._store.importing() as writer:
            with writer.blob(expected=digest) as file:
                yield file
            self._keep([digest])

    def has(self, digest: Digest) -> bool:
        """Whether the blob is here, and then it stays a while: nobody will send it again."""
        if self._store.blobs.size(digest) is None:
            return False
        self._keep([digest])
        if self._store.blobs.size(digest) is not None:
            return True
        self._let_go([digest])
        return False

    @contextmanager
    def using(self, digests: Collection[Digest]) -> Iterator[None]:
        """Blobs for one create. RequestError naming one that is not here.

        They may go once the `with` ends without an error.
        """
        wanted = set(digests)
        with self._lock:
            self._in_use.update(wanted)
        try:
            for digest in sorted(wanted):
                if not self.has(digest):
                    raise RequestError(
                        f"blob {digest} is not here; send it first: POST /api/blobs/{digest}"
                    )
            yield
        finally:
            with self._lock:
                self._in_use -= Counter(wanted)  # which drops what nobody uses any more
        self._let_go(wanted)

    def close(self) -> None:
        """Let go of everything."""
        self._let_go(list(self._until))

    def _keep(self, digests: Collection[Digest]) -> None:
        with self._lock:
            if self._hold is None:
                self._hold = Hold(self._store.folders)
            self._hold.add(digests)
            now = self._clock()
            self._until.update(dict.fromkeys(digests, now + self._keep_s))
            late = [digest for digest, until in self._until.items() if until <= now]
        self._let_go(late)

    def _let_go(self, digests: Collection[Digest]) -> None:
        """Hold these no more, unless a create is using them, and collect what that sets free."""
        with self._lock:
            going = [d for d in digests if d in self._until and not self._in_use[d]]
            if not going:
                return
            for digest in going:
                del self._until[digest]
            self._renew()
        self._store.collect()

    def _renew(self) -> None:
        former, self._hold = self._hold, None
        if self._until:
            self._hold = Hold(self._store.folders)
            self._hold.add(self._until)
        if former is not None:
            former.release()
