"""Embeddings against hidden states and token ids of transformers (08 API-13).

The whole way: a folder as sentence-transformers saves it, the importer, the store, the runner's
composition. The pooling is computed here from transformers' own hidden states.
"""

import dataclasses
import json
import os
import threading
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import processors
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from fixtures.checkpoints import edit_tensors
from fixtures.embedders import FLAGS, add_pooling
from fixtures.tiny import Family, tiny_folder, tiny_model, write_tokenizer
from forerun.engine.embed import embed
from forerun.engine.loaded import LoadedModel
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.runner.compose import load_engine
from forerun.runner.prepare import Limits, prepare_embedding
from forerun.runner.request import LoadRequest
from forerun.runner.text import load_text
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

TOKENS = [(7 * i) % 251 for i in range(45)]  # several times gemma3's window of 8
TEXT = "Ein Text, 日本 and 👩‍💻"


def store_with(folder: Path, checkpoint: Path) -> StoredModel:
    store = Store(folder / "store")
    request = CreateRequest(name="tiny", modelfile="FROM .", folder=str(checkpoint))
    with open(os.devnull, "wb") as unheard:
        create(request, store, Reporter(unheard.fileno()))
    return store.get(ModelName.parse("tiny"))


def engine(folder: Path, stored: StoredModel) -> LoadedModel:
    request = LoadRequest("tiny", folder / "store", num_ctx=64)
    return load_engine(stored, request, lambda _what, _done: None)


@torch.inference_mode()
def vector(loaded: LoadedModel, dimensions: int | None = None) -> Tensor:
    return torch.tensor(embed(loaded, TOKENS, dimensions, threading.Event()))


@torch.inference_mode()
def hidden_states(family: Family, **config: object) -> Tensor:
    """[n, hidden] after the last norm."""
    model = tiny_model(family, **config).base_model
    states: Tensor = model(torch.tensor([TOKENS])).last_hidden_state[0]
    return states


def pooled(states: Tensor, mode: str) -> Tensor:
    count = len(states)
    weights = torch.arange(1, count + 1)[:, None]
    return {
        "cls": states[0],
        "max": states.max(0).values,
        "mean": states.mean(0),
        "sqrt": states.sum(0) / count**0.5,
        "weighted": (states * weights).sum(0) / weights.sum(),
        "last": states[-1],
    }[mode]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("modes", [*((name,) for name in FLAGS), ("cls", "max", "mean", "last")])
def test_a_vector_is_what_the_checkpoint_says(
    tmp_path: Path, family: Family, modes: tuple[str, ...]
):
    """Whole and in chunks, as it is and cut; the cut comes before the length of 1."""
    checkpoint = tiny_folder(tmp_path / "checkpoint", family)
    add_pooling(checkpoint, modes)
    loaded = engine(tmp_path, store_with(tmp_path, checkpoint))
    wanted = torch.cat([pooled(hidden_states(family), mode) for mode in modes])
    for chunk in (512, 45, 44, 7, 1):
        chunked = dataclasses.replace(loaded, chunk=chunk)
        for dimensions in (None, 10):
            ours, theirs = vector(chunked, dimensions), normalize(wanted[:dimensions], dim=0)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_without_such_files_it_is_the_mean(tmp_path: Path):
    loaded = engine(tmp_path, store_with(tmp_path, tiny_folder(tmp_path / "c", "qwen3")))
    wanted = normalize(hidden_states("qwen3").mean(0), dim=0)
    torch.testing.assert_close(vector(loaded), wanted, rtol=0, atol=1e-5)


def test_a_model_that_was_saved_without_its_head(tmp_path: Path):
    """As Qwen3-Embedding's tensors are named, on their own names and not under `model.`."""
    checkpoint = tiny_folder(tmp_path / "checkpoint", "qwen3", tie_word_embeddings=True)
    add_pooling(checkpoint, ("last",))
    edit_tensors(
        checkpoint,
        lambda tensors: {name.removeprefix("model."): each for name, each in tensors.items()},
    )
    ours = vector(engine(tmp_path, store_with(tmp_path, checkpoint)))
    wanted = normalize(hidden_states("qwen3", tie_word_embeddings=True)[-1], dim=0)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-5)


def set_template(folder: Path, single: str) -> None:
    """A post-processor as published tokenizers have it."""
    path = str(folder / "tokenizer.json")
    library = Library.from_file(path)
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    library.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, library.token_to_id(name)) for name in names]
    )
    library.save(path)


def set_config(folder: Path, **fields: object) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"bos_token": "<|im_start|>", **fields}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


BOS, EOS = "<|im_start|>", "<|im_end|>"


@pytest.mark.parametrize(
    ("single", "fields"),
    [
        (None, {}),
        ("$A <|endoftext|>", {"add_bos_token": ...}),  # as Qwen3-Embedding has it
        (f"{BOS} $A {EOS}", {"add_bos_token": ...}),
        (f"{BOS} $A", {"add_bos_token": ...}),
        (None, {"add_bos_token": ...}),
        (f"{BOS} $A", {"add_bos_token": False, "add_eos_token": True}),
        (f"{BOS} $A", {"add_bos_token": ..., "add_eos_token": True}),
        (None, {"add_bos_token": True, "add_eos_token": False}),
        (None, {"add_bos_token": True, "add_eos_token": True}),
        (None, {"add_bos_token": False, "add_eos_token": True, "eos_token": ...}),
    ],
)
@pytest.mark.parametrize("text", [TEXT, "a", " a", "\n"])
def test_ids_equal_transformers(
    tmp_path: Path, single: str | None, fields: dict[str, object], text: str
):
    """BOS, EOS and whatever else the checkpoint's tokenizer puts around a text, also where the text
    is cut to the context."""
    checkpoint = tiny_folder(tmp_path / "checkpoint", "llama", num_hidden_layers=1)
    write_tokenizer(checkpoint)
    if single is not None:
        set_template(checkpoint, single)
    set_config(checkpoint, **fields)
    parts = load_text(store_with(tmp_path, checkpoint))
    theirs = AutoTokenizer.from_pretrained(checkpoint)
    ours = prepare_embedding(text, parts, Limits(512, 512, 264), truncate=False)
    assert list(ours) == theirs(text)["input_ids"]
    cut = prepare_embedding(TEXT, parts, Limits(8, 512, 264), truncate=True)
    assert list(cut) == theirs(TEXT, truncation=True, max_length=8)["input_ids"]
