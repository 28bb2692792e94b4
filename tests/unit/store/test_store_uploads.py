"""Uploaded blobs stay until a create has used them, or a day (08 API-3, 07 CAT-6)."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forerun.base.errors import RequestError, StoreError
from forerun.store.blobs import Blob, Digest
from forerun.store.store import Store
from forerun.store.uploads import Uploads

DATA, OTHER = b"some weights", b"other weights"
DIGEST = Digest.of(DATA)
KEEP_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def uploads(store: Store, clock: Clock) -> Iterator[Uploads]:
    uploads = Uploads(store, keep_s=KEEP_S, clock=clock)
    yield uploads
    uploads.close()


def send(uploads: Uploads, data: bytes, digest: Digest | None = None, step: int = 5) -> None:
    with uploads.receive(digest or Digest.of(data)) as file:
        for start in range(0, len(data), step):
            file.write(data[start : start + step])


def left(store: Store) -> list[str]:
    """What a collection leaves of the blobs' folder."""
    store.collect()
    if not store.folders.blobs.is_dir():
        return []
    return sorted(file.name for file in store.folders.blobs.iterdir())


def test_an_upload_survives_collections(uploads: Uploads, store: Store) -> None:
    """08 API-3: no manifest names it yet."""
    assert not uploads.has(DIGEST)
    send(uploads, DATA)
    assert left(store) == [DIGEST.file_name]
    assert uploads.has(DIGEST)
    assert store.blobs.read(Blob(DIGEST, len(DATA))) == DATA


def test_other_bytes_than_promised_leave_nothing(uploads: Uploads, store: Store) -> None:
    """08 API-3: a wrong digest is the sender's mistake, and says what came."""
    with pytest.raises(RequestError, match=str(Digest.of(OTHER))):
        send(uploads, OTHER, DIGEST)
    assert list(store.folders.blobs.iterdir()) == []


def test_an_upload_that_is_cut_off_leaves_nothing(uploads: Uploads, store: Store) -> None:
    """08 API-3."""
    with pytest.raises(ConnectionError), uploads.receive(DIGEST) as file:
        file.write(DATA[:5])
        raise ConnectionError
    assert list(store.folders.blobs.iterdir()) == []


def test_the_upload_under_way_is_nobodys_garbage(uploads: Uploads, store: Store) -> None:
    """07 CAT-6."""
    with uploads.receive(DIGEST) as file:
        file.write(DATA[:5])
        assert len(left(store)) == 1
        file.write(DATA[5:])
    assert left(store) == [DIGEST.file_name]


def test_a_damaged_blob_is_healed_by_sending_it_again(uploads: Uploads, store: Store) -> None:
    """07 CAT-5."""
    send(uploads, DATA)
    store.blobs.path(DIGEST).write_bytes(b"rot")
    send(uploads, DATA)
    assert store.blobs.path(DIGEST).read_bytes() == DATA


def test_a_create_that_succeeds_lets_go(uploads: Uploads, store: Store) -> None:
    """08 API-3: one that fails does not, so that the next try need not send again."""
    send(uploads, DATA)
    send(uploads, OTHER)
    with pytest.raises(KeyError), uploads.using([DIGEST]):
        raise KeyError
    assert DIGEST.file_name in left(store)
    with uploads.using([DIGEST]):
        assert DIGEST.file_name in left(store)
    assert left(store) == [Digest.of(OTHER).file_name]


def test_what_another_create_is_using_stays(uploads: Uploads, store: Store) -> None:
    """08 API-3, 07 CAT-6."""
    send(uploads, DATA)
    with uploads.using([DIGEST]):
        with uploads.using([DIGEST]):
            pass
        assert left(store) == [DIGEST.file_name]
    assert left(store) == []


def test_a_create_of_what_is_not_here_names_it(uploads: Uploads, store: Store) -> None:
    """08 API-3."""
    with pytest.raises(RequestError, match=str(DIGEST)), uploads.using([DIGEST]):
        pass
    send(uploads, DATA)
    with uploads.using([DIGEST]):
        pass
    assert left(store) == []  # the failed one does not count as a user any more
    assert not uploads._in_use  # digests that clients make up are not remembered


def test_an_upload_that_nobody_asks_for_goes_after_a_while(
    uploads: Uploads, store: Store, clock: Clock
) -> None:
    """08 API-3: asking for it starts the time anew."""
    send(uploads, DATA)
    send(uploads, OTHER)
    clock.now = KEEP_S - 1
    assert uploads.has(DIGEST)
    clock.now = KEEP_S + 1
    send(uploads, b"third")
    assert left(store) == sorted([DIGEST.file_name, Digest.of(b"third").file_name])
    clock.now = 2 * KEEP_S
    send(uploads, b"third")
    assert left(store) == [Digest.of(b"third").file_name]


def test_uploads_end_with_their_server(store: Store) -> None:
    """07 CAT-6: whether it closes them or not; a hold needs its process."""
    uploads = Uploads(store)
    send(uploads, DATA)
    uploads.close()
    assert left(store) == []
    assert list(store.folders.holds.iterdir()) == []


def test_a_blob_that_a_model_needs_stays_when_the_upload_goes(store: Store) -> None:
    """07 CAT-6: an upload may be a blob of a model at the same time."""
    with store.importing() as writer:
        blob = writer.add_bytes(DATA)
        uploads = Uploads(store)
        assert uploads.has(blob.digest)
        uploads.close()
        assert blob.digest.file_name in left(store)


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """The system refuses to write more than `limit` bytes to one file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("step", [5, 60_000])
def test_a_full_disk_is_one_clear_line(
    uploads: Uploads, store: Store, tmp_path: Path, step: int
) -> None:
    """08 API-14: the line names the store and says to make room; nothing is left."""
    data = bytes(100_000)
    with small_files(50_000), pytest.raises(StoreError, match="make room") as raised:
        send(uploads, data, step=step)
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(store.folders.blobs.iterdir()) == []
