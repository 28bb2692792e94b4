"""The importer as its parent sees it: one request in, events out, and no harm however it ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from fixtures.tiny import tiny_folder, write_tokenizer
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.codec import decode_import_event, encode_line
from forerun.protocol.events import Failed
from forerun.protocol.imports import (
    CreateRequest,
    Imported,
    ImportEvent,
    ImportStatus,
    PullRequest,
)
from forerun.store.names import ModelName
from forerun.store.store import Store
from unit.importer.gguf_files import F32, shape_metadata, tokenizer_metadata, write_gguf
from unit.importer.local_hub import COMMIT, hub

SOURCES = Path(__file__).parents[2] / "src"
NAME = ModelName.parse("made")
END_S = 5.0  # RUN-14
MODULE = ("-m", "forerun.importer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 100 tensors and 35 MB, in a folder called `tiny`: some time to stop it in."""
    folder = tmp_path_factory.mktemp("models")
    tiny_folder(
        folder / "tiny", "llama", num_hidden_layers=11, hidden_size=256, intermediate_size=768
    )
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@contextmanager
def running(
    store: Store, request: bytes, *, arguments: tuple[str, ...] = MODULE, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """An importer that has its request; its standard input stays open, and errors come here."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=surroundings(store) | environment,
    ) as child:
        try:
            assert child.stdin is not None
            child.stdin.write(request)
            child.stdin.flush()
            yield child
        finally:
            child.kill()


def surroundings(store: Store) -> dict[str, str]:
    paths = {"PYTHONPATH": str(SOURCES), "FORERUN_MODELS": str(store.folders.root)}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1"}


def events_of(child: subprocess.Popen[bytes]) -> Iterator[ImportEvent]:
    assert child.stdout is not None
    return map(decode_import_event, child.stdout)


def until_converting(child: subprocess.Popen[bytes]) -> None:
    """Wait until the first bytes of a tensor are converted."""
    for event in events_of(child):
        assert isinstance(event, ImportStatus), event
        if event.status == "converting tensors":
            return
    raise AssertionError("the import ended too early")


def creation(folder: Path, modelfile: str = "FROM tiny") -> CreateRequest:
    return CreateRequest(name="made", modelfile=modelfile, folder=str(folder))


NOISY = """
import os, sys
import forerun.importer.create as module

real = module.create

def create(*arguments):
    print("noise", flush=True)
    os.system("echo noise")
    return real(*arguments)

module.create = create
from forerun.importer.__main__ import main
sys.exit(main())
"""


def test_events_are_alone_on_standard_output(
    folder: Path, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """RUN-13: status lines, then one Imported; what libraries print goes to standard error."""
    request = encode_line(creation(folder))
    with running(store, request, arguments=("-c", NOISY)) as child:
        *before, last = events_of(child)
        assert child.wait(END_S) == 0
    assert all(isinstance(event, ImportStatus) for event in before)
    assert last == Imported(name="made:latest", digest=str(store.get(NAME).digest))
    assert capfd.readouterr().err.split().count("noise") == 2


@pytest.mark.parametrize(
    ("request_line", "environment", "status", "named"),
    [
        (encode_line(PullRequest(name="no-such-model")), {}, 404, "no-such-model"),
        (encode_line(PullRequest(name="example.com/a/b")), {}, 501, "example.com"),
        (encode_line(creation(Path("/"), "FROM ./nothing")), {}, 400, "nothing"),
        (b'{"type":"pull"}\n', {}, 400, "name"),
        (b"not json\n", {}, 400, "malformed"),
        (encode_line(PullRequest(name="a")), {"FORERUN_THREADS": "-3"}, 400, "FORERUN_THREADS"),
    ],
)
def test_a_failure_is_one_line_with_a_status(
    store: Store, request_line: bytes, environment: dict[str, str], status: int, named: str
) -> None:
    """RUN-13, CAT-1: exactly one Failed, a non-zero exit, and nothing registered."""
    with running(store, request_line, **environment) as child:
        (event,) = events_of(child)
        assert child.wait(END_S) == 1
    assert isinstance(event, Failed)
    assert event.status == status
    assert named in event.message
    assert "\n" not in event.message
    assert store.entries() == []


def test_a_repository_is_pulled_through_the_process(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """CAT-1, CAT-4: sharded weights and files from a hub; the commit is the model's origin."""
    repository = tiny_folder(tmp_path / "repository", "qwen3", shard_size="60KB")
    (repository / "pickle.bin").write_bytes(b"never asked for")
    request = encode_line(PullRequest(name="hf.co/org/name"))
    with hub(repository) as address:
        settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        with running(store, request, **settings) as child:
            last = list(events_of(child))[-1]
    assert isinstance(last, Imported), capfd.readouterr().err
    model = store.get(ModelName.parse("hf.co/org/name"))
    assert model.config.origin is not None
    assert (model.config.origin.source, model.config.origin.version) == ("hf.co/org/name", COMMIT)
    assert model.json("config.json")["architectures"] == ["Qwen3ForCausalLM"]
    assert (model.config.parser, model.config.capabilities) == ("qwen3", ("completion",))
    assert list(store.folders.downloads.iterdir()) == []


def test_a_closed_input_ends_the_import_at_once(folder: Path, store: Store) -> None:
    """RUN-14, CFG-6: in time, without a manifest and without half a file."""
    with running(store, encode_line(creation(folder))) as child:
        until_converting(child)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(END_S) == 1
    assert store.entries() == []
    store.collect()
    assert list(store.folders.blobs.iterdir()) == []


def test_an_importer_ends_with_a_parent_that_was_killed(folder: Path, store: Store) -> None:
    """RUN-14: however the parent died; the importer's own output tells when it is gone."""
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, *{MODULE}], stdin=subprocess.PIPE)\n"
        f"child.stdin.write({encode_line(creation(folder))!r})\n"
        "child.stdin.flush()\n"
        "time.sleep(600)\n"
    )
    with running(store, b"", arguments=("-c", parent)) as process:
        until_converting(process)
        process.kill()
        assert process.stdout is not None
        late = threading.Event()
        alarm = threading.Timer(END_S, late.set)
        alarm.start()
        process.stdout.read()  # ends when the importer, its last writer, has ended
        alarm.cancel()
    assert not late.is_set(), f"the importer outlived its parent by {END_S} s"
    assert store.entries() == []


def test_a_killed_import_continues_and_gives_the_same_model(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    """07 T13, CAT-4, CAT-6, CFG-6: a kill leaves no model, and the next run is as if unkilled."""
    for _ in range(2):
        with running(store, encode_line(creation(folder))) as child:
            until_converting(child)
            child.send_signal(signal.SIGKILL)
            child.wait()
        assert store.entries() == []
    whole = Store(tmp_path / "whole")
    silent = Reporter(os.open(os.devnull, os.O_WRONLY))
    digests = [create(creation(folder), place, silent) for place in (store, whole)]
    os.close(silent.descriptor)
    assert digests[0] == digests[1]
    assert store.damaged(NAME) == ()
    store.collect()
    named = {blob.digest.file_name for blob in store.get(NAME).manifest.blobs}
    assert {file.name for file in store.folders.blobs.iterdir()} == named


MEASURED = """
import os, sys, threading
from pathlib import Path
import forerun.importer.check
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.store.store import Store

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

folder, root = sys.argv[1:]
before = peak = anonymous()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch)
thread.start()
request = CreateRequest(name="made", modelfile="FROM big.gguf", folder=folder)
create(request, Store(Path(root)), Reporter(os.open(os.devnull, os.O_WRONLY)))
done.set()
thread.join()
print(peak - before)
"""


def test_memory_stays_within_three_of_the_largest_tensor(tmp_path: Path, store: Store) -> None:
    """CFG-7: anonymous memory above its value after imports, for every way of converting."""
    largest = write_big_gguf(tmp_path)
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path), str(store.folders.root)],
        env=surroundings(store),
        check=True,
        stdout=subprocess.PIPE,
    )
    growth = int(measured.stdout)
    assert growth <= 3 * largest + 60_000_000, f"{growth / 1e6:.0f} MB for {largest / 1e6:.0f} MB"


BIG = {
    "max_position_embeddings": 64,
    "hidden_size": 2048,
    "num_hidden_layers": 1,
    "intermediate_size": 16384,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
}


def write_big_gguf(folder: Path) -> int:
    """A llama of zeros with every way of converting in it; the bytes of its largest tensor."""
    hidden, wide = 2048, 16384
    shapes = {
        "token_embd": ("Q8_0", wide, hidden),
        "output": ("Q4_K", wide, hidden),
        "blk.0.attn_q": ("Q4_0", hidden, hidden),
        "blk.0.attn_k": ("F32", hidden, hidden),
        "blk.0.attn_v": ("Q4_1", hidden, hidden),
        "blk.0.attn_output": ("BF16", hidden, hidden),
        "blk.0.ffn_gate": ("F16", wide, hidden),
        "blk.0.ffn_up": ("Q8_0", wide, hidden),
        "blk.0.ffn_down": ("Q6_K", hidden, wide),
    }
    tensors: dict[str, tuple[Any, GGMLQuantizationType]] = {
        f"{name}.weight": (np.ones(hidden, np.float32), F32)
        for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    }
    for name, (kind, rows, columns) in shapes.items():
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        halves = {"F32": np.float32, "F16": np.float16}
        row = (columns, halves[kind]) if kind in halves else (columns // block * size, np.uint8)
        tensors[f"{name}.weight"] = (np.zeros((rows, row[0]), row[1]), GGMLQuantizationType[kind])
    write_tokenizer(folder)
    metadata = shape_metadata("llama", BIG) | tokenizer_metadata(folder)
    write_gguf(folder / "big.gguf", "llama", metadata, tensors)
    return max(data.nbytes for data, _ in tensors.values())
