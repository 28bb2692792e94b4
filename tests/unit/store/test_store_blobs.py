"""Digests and blobs (07 CFG-3): content-addressed, whole or absent, checked."""

import os
from collections.abc import Callable

import pytest

from forerun.base.errors import RequestError, StoreError
from forerun.store.blobs import Blob, Blobs, Digest
from forerun.store.store import Store

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_digest_is_written_as_docker_does() -> None:
    """CFG-3."""
    assert str(Digest.of(b"")) == f"sha256:{EMPTY}"
    assert Digest.of(b"").file_name == f"sha256-{EMPTY}"
    assert Digest.parse(f"sha256:{EMPTY}") == Digest.of(b"")


@pytest.mark.parametrize(
    "text",
    [
        *("", EMPTY, f"sha256-{EMPTY}", f"sha256:{EMPTY.upper()}", f"sha512:{EMPTY}"),
        *(
            f"sha256:{EMPTY}\n",
            f"sha256:{EMPTY}/../x",
            "sha256:../../etc/passwd",
            "sha256:" + "0" * 63,
        ),
    ],
)
def test_what_is_no_digest_is_refused(text: str) -> None:
    """T12: a digest cannot lead out of the store."""
    with pytest.raises(RequestError, match="sha256:<64 hex digits>"):
        Digest.parse(text)
    with pytest.raises(RequestError):
        Digest(text.removeprefix("sha256:")[:-1] + "/")


def test_equal_content_is_stored_once(store: Store) -> None:
    """CFG-3."""
    with store.importing() as writer:
        first = writer.add_bytes(b"weights")
        with writer.blob() as file:
            file.write(b"wei")
            file.write(memoryview(b"ghts"))
        assert file.blob == first
    assert list(store.blobs) == [first]
    assert store.blobs.read(first) == b"weights"


def test_memory_is_hashed_and_written_as_bytes(store: Store) -> None:
    """Weights come as arrays: their elements are wider than a byte."""
    with store.importing() as writer, writer.blob() as file:
        assert file.write(memoryview(bytes(range(16))).cast("I")) == 16
    assert store.blobs.read(file.blob) == bytes(range(16))


def test_an_abandoned_blob_leaves_nothing(store: Store) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        store.importing() as writer,
        writer.blob() as file,
    ):
        file.write(b"half")
        raise ZeroDivisionError
    assert list(store.folders.blobs.iterdir()) == []


def test_a_missing_blob_names_itself_and_the_way_out(store: Store) -> None:
    with pytest.raises(StoreError, match=f"blob sha256:{EMPTY} is missing.*pull or create"):
        store.blobs.file(Blob(Digest(EMPTY), 0))


@pytest.mark.parametrize("read", [Blobs.read, Blobs.open, Blobs.verify])
def test_a_blob_that_goes_while_it_is_opened_is_missing(
    store: Store, read: Callable[[Blobs, Blob], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CAT-6: another process removed its model between the look at it and the opening."""
    blob = Blob(Digest(EMPTY), 0)
    monkeypatch.setattr(Blobs, "file", lambda blobs, blob: blobs.path(blob.digest))
    with pytest.raises(StoreError, match=f"blob sha256:{EMPTY} is missing"):
        read(store.blobs, blob)


def test_a_blob_cut_short_says_both_sizes(store: Store) -> None:
    """Issue 2: a truncated blob is found before anything is read from it."""
    with store.importing() as writer:
        blob = writer.add_bytes(b"weights")
    os.truncate(store.blobs.path(blob.digest), 3)
    for use in (store.blobs.file, store.blobs.open, store.blobs.read, store.blobs.verify):
        with pytest.raises(StoreError, match="has 3 bytes instead of 7"):
            use(blob)


def test_a_changed_blob_is_found_by_its_digest(store: Store) -> None:
    """Issue 2: corrupt blob. What is written over it anew is right again."""
    with store.importing() as writer:
        blob = writer.add_bytes(b"weights")
        store.blobs.path(blob.digest).write_bytes(b"weightz")
        for use in (store.blobs.read, store.blobs.verify):
            with pytest.raises(StoreError, match="is damaged"):
                use(blob)
        writer.add_bytes(b"weights")
    store.blobs.verify(blob)


def test_a_blob_is_replaced_by_rename_never_rewritten(store: Store) -> None:
    """05 LOD-11: whoever has the old file mapped keeps it."""
    with store.importing() as writer:
        blob = writer.add_bytes(b"weights")
        with store.blobs.open(blob) as before:
            writer.add_bytes(b"weights")
            assert os.fstat(before.fileno()).st_ino != os.stat(store.blobs.path(blob.digest)).st_ino
            assert before.read() == b"weights"


def test_a_store_that_cannot_be_written_says_so_in_one_line(store: Store) -> None:
    store.folders.root.mkdir()
    (store.folders.root / "locks").write_bytes(b"a file, not a folder")
    with (
        pytest.raises(StoreError, match=r"cannot write to the store.*FORERUN_MODELS"),
        store.importing(),
    ):
        pass
