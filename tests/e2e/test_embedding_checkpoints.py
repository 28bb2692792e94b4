"""A sentence-transformers checkpoint through the importer process and the Python API (API-13)."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import forerun
from fixtures.embedders import add_pooling
from fixtures.tiny import tiny_folder
from forerun import Model
from forerun.base.errors import RequestError
from forerun.engine.memory import anonymous_bytes
from forerun.protocol.imports import CreateRequest, Imported
from forerun.scheduler.importing import run_import
from forerun.settings import Settings

LONG = "a text of forty bytes, over and over. .." * 100  # eight chunks
MIB = 1024**2
ROUNDS = 20  # so many that what an allocator keeps does not count


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("embedder")
    checkpoint = tiny_folder(folder / "checkpoint", "qwen3", max_position_embeddings=4096)
    add_pooling(checkpoint, ["cls", "max"])
    settings = Settings.from_environment({"FORERUN_MODELS": str(folder / "store")})
    request = CreateRequest(name="tiny", modelfile=f"FROM {checkpoint}", folder=str(Path.cwd()))
    assert isinstance(list(run_import(request, settings))[-1], Imported)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_MODELS", str(settings.models))
        patch.setenv("FORERUN_THREADS", "1")
        with forerun.load("tiny") as loaded:
            yield loaded


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """What only the garbage collector would free stays, and so it shows."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_vectors_of_several_kinds_follow_one_another(model: Model):
    """API-13: and may be cut anywhere up to the length of all of them."""
    (whole,) = model.embed(["a text"])
    assert len(whole) == model.info.embedding_length == 2 * 64
    assert len(model.embed(["a text"], dimensions=100)[0]) == 100
    with pytest.raises(RequestError, match="must be 1 to 128"):
        model.embed(["a text"], dimensions=129)


def test_a_long_text_leaves_nothing_behind(model: Model):
    """API-13: a conversation stays warm, and the text's own caches are gone."""
    model.generate("Once upon a time", num_predict=2, temperature=0).text()
    model.embed([LONG])
    before = anonymous_bytes()
    with collector_at_rest():
        for _ in range(ROUNDS):
            model.embed([LONG])
        grown = anonymous_bytes() - before
    assert grown < 1.5 * MIB * ROUNDS  # the caches of each take 3.1 MiB
    *_, done = model.generate("Once upon a time", num_predict=2, temperature=0)
    assert done.figures.cached_tokens == done.figures.prompt_tokens - 1
