"""Law: a collection leaves an upload while it is wanted and in time, or a model needs it; no other.

08 API-3, 07 CAT-6. The model is a dictionary of when each upload's time ends.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forerun.base.errors import RequestError
from forerun.store.blobs import Digest
from forerun.store.store import Store
from forerun.store.uploads import Uploads

CONTENTS = st.sampled_from([b"a", b"b", b"c"])
KEEP_S = 3.0


class UploadsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.store = Store(self.root)
        self.now = 0.0
        self.uploads = Uploads(self.store, keep_s=KEEP_S, clock=lambda: self.now)
        self.until: dict[Digest, float] = {}  # what the uploads hold
        self.here: set[Digest] = set()

    def teardown(self) -> None:
        self.uploads.close()
        shutil.rmtree(self.root)

    @rule(data=CONTENTS)
    def send(self, data: bytes) -> None:
        with self.uploads.receive(Digest.of(data)) as file:
            file.write(data)
        self.here.add(Digest.of(data))
        self._asked(Digest.of(data))

    @rule(data=CONTENTS)
    def ask(self, data: bytes) -> None:
        digest = Digest.of(data)
        assert self.uploads.has(digest) == (digest in self.here)
        if digest in self.here:
            self._asked(digest)

    @rule(data=CONTENTS, succeeds=st.booleans())
    def create(self, data: bytes, succeeds: bool) -> None:
        digest = Digest.of(data)
        try:
            with self.uploads.using([digest]):
                assert digest in self.here
                self._asked(digest)
                if not succeeds:
                    raise KeyError
        except RequestError:
            assert digest not in self.here
        except KeyError:
            assert not succeeds
        else:
            self._let_go({digest})

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def collect(self) -> None:
        self.store.collect()
        self.here &= set(self.until)

    @invariant()
    def what_is_here_is_here(self) -> None:
        assert {blob.digest for blob in self.store.blobs} == self.here

    def _asked(self, digest: Digest) -> None:
        """Its time begins anew; those whose time is over are let go of on the way."""
        self.until[digest] = self.now + KEEP_S
        self._let_go({late for late, until in self.until.items() if until <= self.now})

    def _let_go(self, digests: set[Digest]) -> None:
        if digests & set(self.until):
            for digest in digests:
                del self.until[digest]
            self.here &= set(self.until)


TestUploads = UploadsMachine.TestCase
TestUploads.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
