"""Kills an import at every step of it, and looks what is left. Run as a script by a test.

Arguments: a scratch folder, and every how many steps to kill. A step is a line of the store, of
`base.paths` or of `tempfile`; the process dies there with SIGKILL, without unwinding. Each victim
is a fork of this single-threaded process. Ends with 0 if every store was consistent, and prints at
how many steps it was killed.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import forerun.base.paths
import forerun.store.store
from forerun.store.folders import TEMPORARY
from forerun.store.manifest import TENSOR, Layer, ModelConfig
from forerun.store.names import ModelName
from forerun.store.store import Store

KEPT, REPLACED, REMOVED, NEW = (ModelName.parse(text) for text in ("kept", "old", "gone", "new"))
WATCHED = (
    str(Path(forerun.store.store.__file__).parent),
    forerun.base.paths.__file__,
    tempfile.__file__,
)
Contents = dict[ModelName, list[bytes]]
BEFORE: Contents = {KEPT: [b"k", b"shared"], REPLACED: [b"o", b"shared"], REMOVED: [b"g"]}
AFTER: Contents = {KEPT: [b"k", b"shared"], REPLACED: [b"n" * 999, b"shared"], NEW: [b"g", b"n"]}


def put(store: Store, name: ModelName, contents: list[bytes]) -> None:
    """Write a model in pieces."""
    with store.importing() as writer:
        layers = []
        for index, content in enumerate(contents):
            with writer.blob() as file:
                for start in range(0, len(content), 400):
                    file.write(content[start : start + 400])
            layers.append(Layer(TENSOR, file.blob, f"t{index}"))
        writer.publish(name, ModelConfig(), layers)


def job(store: Store) -> None:
    """What is killed: a pull, a replacement, a removal. Run again it does what is left to do."""
    put(store, NEW, AFTER[NEW])
    put(store, REPLACED, AFTER[REPLACED])
    if store.exists(REMOVED):
        store.delete(REMOVED)


def models(store: Store) -> Contents:
    """All that the store has, every byte checked."""
    found: Contents = {}
    for entry in store.entries():
        assert not entry.damage, entry
        assert store.damaged(entry.name) == ()
        model = store.get(entry.name)
        found[entry.name] = [model.read(layer) for layer in model.tensors]
    return found


def run_until(step: int, root: Path) -> bool:
    """Run the job in a fork that dies at `step`; False if it ended before."""
    child = os.fork()
    if child == 0:
        die_at(step)
        job(Store(root))
        sys.settrace(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, status
    return os.WIFSIGNALED(status)


def die_at(step: int) -> None:
    """From now on count lines, and end this process like a power cut at the given one."""
    left = step

    def count(frame: FrameType, event: str, argument: object) -> object:
        nonlocal left
        del argument
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    sys.settrace(count)  # type: ignore[arg-type]


def check(store: Store) -> None:
    """The laws of what a kill leaves, and of the next run."""
    found = models(store)
    assert found[KEPT] == BEFORE[KEPT]
    for name, contents in found.items():
        assert contents in (BEFORE.get(name), AFTER.get(name)), f"{name} is neither old nor new"
    assert found[REPLACED] in (BEFORE[REPLACED], AFTER[REPLACED])
    job(store)
    assert models(store) == AFTER
    store.collect()
    named = {b.digest.file_name for n in AFTER for b in store.get(n).manifest.blobs}
    assert {file.name for file in store.folders.blobs.iterdir()} == named
    assert list(store.folders.holds.iterdir()) == []
    assert not [f for f in store.folders.manifests.rglob("*") if f.name.startswith(TEMPORARY)]


def main() -> None:
    """Kill at every n-th step."""
    scratch, every = Path(sys.argv[1]), int(sys.argv[2])
    template = Store(scratch / "template")
    for name, contents in BEFORE.items():
        put(template, name, contents)
    kills, killed = 0, True
    while killed:
        root = scratch / "store"
        shutil.copytree(template.folders.root, root)
        killed = run_until(kills * every, root)
        check(Store(root))
        shutil.rmtree(root)
        kills += 1
    print(kills - 1)  # noqa: T201 - this is its answer


if __name__ == "__main__":
    main()
