"""A GGUF file's pooling and its tokens around a text reach the runner (08 API-13, GUF-7)."""

import os
from pathlib import Path

import pytest

from fixtures.tiny import tiny_folder
from forerun.base.errors import LoadError
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.runner.pooling import read_pooling
from forerun.runner.prepare import Limits, prepare_embedding
from forerun.runner.text import load_text
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.gguf_files import convert_folder


def imported(folder: Path, **keys: object) -> StoredModel:
    extra = {name.replace("__", "."): value for name, value in keys.items()}
    checkpoint = tiny_folder(folder / "checkpoint", "qwen3", num_hidden_layers=1)
    convert_folder(checkpoint, folder / "a.gguf", "qwen3", extra=extra)
    store = Store(folder / "store")
    request = CreateRequest(name="tiny", modelfile="FROM a.gguf", folder=str(folder))
    with open(os.devnull, "wb") as unheard:
        create(request, store, Reporter(unheard.fileno()))
    return store.get(ModelName.parse("tiny"))


@pytest.mark.parametrize(
    ("stated", "mode"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "lasttoken")]
)
def test_the_type_of_pooling(tmp_path: Path, stated: int | None, mode: str) -> None:
    keys = {} if stated is None else {"qwen3__pooling_type": stated}
    assert read_pooling(imported(tmp_path, **keys)).modes == (mode,)


@pytest.mark.parametrize(("stated", "named"), [(4, "'rank'"), (9, "'type 9 of")])
def test_other_types_are_a_load_error_that_names_them(
    tmp_path: Path, stated: int, named: str
) -> None:
    with pytest.raises(LoadError, match=named):
        read_pooling(imported(tmp_path, qwen3__pooling_type=stated))


def test_the_end_that_the_file_wants_after_a_text(tmp_path: Path) -> None:
    text = load_text(imported(tmp_path, tokenizer__ggml__add_eos_token=True))
    assert prepare_embedding("a", text, Limits(64, 64, 264), truncate=False) == (97, 258)
