"""Drives a store through arbitrary calls, against the plainest model of one: a dict.

The model maps a name to the contents of its tensors. Names and contents are few, so that models
share blobs, replace each other and are removed while an import counts on what they have.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forerun.base.errors import NotFoundError, StoreError
from forerun.store.blobs import Blob, Digest
from forerun.store.manifest import TENSOR, Layer, ModelConfig
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.writer import StoreWriter

NAMES = st.sampled_from([ModelName.parse(t) for t in ("a:1", "a:2", "me/a:1", "hf.co/o/n")])
LOCAL = st.sampled_from([ModelName.parse(t) for t in ("a:1", "a:2", "me/a:1")])
CONTENT = st.sampled_from([b"x", b"yy", b"zzz"])
CONTENTS = st.lists(CONTENT, max_size=3)


def _publish(writer: StoreWriter, name: ModelName, contents: list[bytes]) -> None:
    layers = [Layer(TENSOR, writer.add_bytes(c), f"t{i}") for i, c in enumerate(contents)]
    writer.publish(name, ModelConfig(), layers)


class StoreLaws(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        folder = self.resources.enter_context(tempfile.TemporaryDirectory())
        self.store = Store(Path(folder))
        self.models: dict[ModelName, list[bytes]] = {}
        self.open: StoreWriter | None = None  # an import that is under way all the while
        self.held: set[bytes] = set()
        self.asked_in_vain: set[bytes] = set()  # what was not there
        self.import_stack = ExitStack()

    def teardown(self) -> None:
        self.import_stack.close()
        self.resources.close()

    @initialize(name=NAMES, contents=CONTENTS)
    def begin(self, name: ModelName, contents: list[bytes]) -> None:
        self.put(name, contents)

    @rule(name=NAMES, contents=CONTENTS)
    def put(self, name: ModelName, contents: list[bytes]) -> None:
        with self.store.importing() as writer:
            _publish(writer, name, contents)
        self.models[name] = contents

    @rule(name=NAMES)
    def delete(self, name: ModelName) -> None:
        try:
            self.store.delete(name)
        except NotFoundError:
            assert name not in self.models
        else:
            del self.models[name]

    @rule(source=NAMES, destination=LOCAL)
    def copy(self, source: ModelName, destination: ModelName) -> None:
        try:
            self.store.copy(source, destination)
        except NotFoundError:
            assert source not in self.models
        else:
            self.models[destination] = self.models[source]

    @precondition(lambda self: self.open is None)
    @rule()
    def begin_an_import(self) -> None:
        self.open = self.import_stack.enter_context(self.store.importing())

    @precondition(lambda self: self.open is not None)
    @rule(content=CONTENT, keep=st.booleans())
    def write_or_keep(self, content: bytes, keep: bool) -> None:
        assert self.open is not None
        if not keep:
            self.open.add_bytes(content)
            self.held.add(content)
            return
        known = content in self.held or any(content in c for c in self.models.values())
        try:
            self.open.keep([Blob(Digest.of(content), len(content))])
        except StoreError:
            assert not known
            self.asked_in_vain.add(content)  # held all the same, if it comes (CAT-6)
        else:
            self.held.add(content)

    @precondition(lambda self: self.open is not None)
    @rule(name=NAMES, publish=st.booleans())
    def end_the_import(self, name: ModelName, publish: bool) -> None:
        assert self.open is not None
        if publish:
            contents = sorted(self.held)
            layers = [Layer(TENSOR, Blob(Digest.of(c), len(c)), c.decode()) for c in contents]
            self.open.publish(name, ModelConfig(), layers)
            self.models[name] = contents
        self.import_stack.close()
        self.import_stack = ExitStack()
        self.open, self.held, self.asked_in_vain = None, set(), set()

    @rule()
    def collect(self) -> None:
        self.store.collect()
        kept = {c for contents in self.models.values() for c in contents} | self.held
        tensors = {blob.size for blob in self.store.blobs if blob.size <= 3}
        may_stay = kept | self.asked_in_vain
        assert {len(content) for content in kept} <= tensors <= {len(each) for each in may_stay}

    @invariant()
    def every_model_is_whole(self) -> None:
        assert {entry.name for entry in self.store.entries()} == set(self.models)
        for name, contents in self.models.items():
            model = self.store.get(name)
            assert [model.read(layer) for layer in model.tensors] == contents

    @invariant()
    def nothing_is_half_written(self) -> None:
        files = [f.name for f in Path(self.store.folders.root).rglob("*") if f.is_file()]
        assert not any(name.startswith(".tmp-") for name in files)


TestStoreLaws = StoreLaws.TestCase
TestStoreLaws.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
