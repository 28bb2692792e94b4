"""Several processes pull, remove and copy at once, some are killed, and the store stays whole."""

import os
import subprocess
import sys
import time
from pathlib import Path

from forerun.store import store as module
from forerun.store.locking import FileLock
from forerun.store.store import Store

SOURCES = Path(module.__file__).parents[2]
SCRIPT = Path(__file__).with_name("busy_store.py")


def _start(root: Path, seed: int, changes: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), str(seed), str(changes)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stderr=subprocess.PIPE,
    )


def test_processes_that_change_a_store_at_once_leave_it_whole(tmp_path: Path) -> None:
    """CAT-6: and two of them are killed on the way (T13)."""
    store = Store(tmp_path / "store")
    workers = [_start(store.folders.root, seed, 60) for seed in range(3)]
    victims = [_start(store.folders.root, seed, 100_000) for seed in (8, 9)]
    deadline = time.monotonic() + 60
    while not list(store.folders.manifests.rglob("*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for victim in victims:
        victim.kill()
    for process in (*workers, *victims):
        _, errors = process.communicate(timeout=120)
        assert process in victims or process.returncode == 0, errors.decode()
    for entry in store.entries():
        assert store.damaged(entry.name) == ()
    store.collect()
    named = {b.digest for e in store.entries() for b in store.get(e.name).manifest.blobs}
    assert {blob.digest for blob in store.blobs} == named
    assert len(list(store.folders.blobs.iterdir())) == len(named)
    assert list(store.folders.holds.iterdir()) == []


def test_a_lock_excludes_and_ends_with_its_process(tmp_path: Path) -> None:
    """CAT-6: what a killed process held is free at once."""
    path = tmp_path / "lock"
    script = (
        "import sys; from pathlib import Path\n"
        "from forerun.store.locking import FileLock\n"
        "lock = FileLock.acquire(Path(sys.argv[1]))\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert FileLock.acquire_now(path) is None
        holder.kill()
        holder.wait()
    with FileLock.acquire(path):
        assert FileLock.acquire_now(path) is None
    again = FileLock.acquire_now(path)
    assert again is not None
    again.release(remove=True)
    assert not path.exists()


def test_who_waits_for_a_lock_that_is_removed_gets_one_that_counts(tmp_path: Path) -> None:
    """CAT-6: a lock on a file that no path leads to would exclude nobody."""
    path = tmp_path / "lock"
    first = FileLock.acquire(path)
    script = (
        "import sys; from pathlib import Path\n"
        "from forerun.store.locking import FileLock\n"
        "print('waiting', flush=True)\n"
        "with FileLock.acquire(Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    waiter = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with waiter:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == b"waiting\n"
        time.sleep(0.1)  # most likely it waits in the kernel by now; correct either way
        first.release(remove=True)
        assert waiter.stdout.readline() == b"held\n"
        assert path.exists()
        assert FileLock.acquire_now(path) is None
        waiter.kill()
