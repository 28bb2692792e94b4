"""What a stored model is, in figures (08 API-2), against the checkpoint's own numbers."""

from pathlib import Path

import pytest
import torch

from fixtures.tiny import tiny_model, tiny_store
from forerun.base.errors import StoreError
from forerun.store.blobs import Blobs, Digest
from forerun.store.describe import describe
from forerun.store.headers import Header, TensorEntry
from forerun.store.names import ModelName
from forerun.store.stored import StoredModel
from forerun.store.tensors import LogicalTensor, logical_tensors, prevailing_kind

TINY = ModelName.parse("tiny")
FILE = Path("blob")


def test_figures_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """08 API-2: parameters counted as transformers counts them, sizes from the config."""
    model = tiny_store(tmp_path, "qwen3", dtype=torch.bfloat16).get(TINY)
    found = describe(model)
    assert found.parameters == sum(p.numel() for p in tiny_model("qwen3").parameters())
    assert (found.model_format, found.architecture, found.quantisation) == (
        *("safetensors", "qwen3", "bf16"),
    )
    assert (found.context_length, found.embedding_length, found.block_count) == (512, 64, 2)
    assert (found.head_count, found.head_count_kv, found.head_length) == (4, 2, 24)
    assert (found.feed_forward_length, found.vocab_size, found.bos_token_id) == (96, 264, None)
    assert found.eos_token_ids == (258,)


def test_a_description_is_remembered_by_digest(tmp_path: Path) -> None:
    """08 API-1: a model that is listed again, under another name too, is not opened again."""
    model = tiny_store(tmp_path).get(TINY)
    first = describe(model)
    nowhere = Blobs(tmp_path / "nowhere")
    again = StoredModel(ModelName.parse("other"), model.digest, model.manifest, nowhere)
    assert describe(again) is first
    unknown = StoredModel(model.name, Digest.of(b"unknown"), model.manifest, nowhere)
    with pytest.raises(StoreError, match="missing"):
        describe(unknown)


def _entry(name: str, dtype: str, *shape: int) -> TensorEntry:
    return TensorEntry(name, dtype, shape, FILE, 0, 0)


@pytest.mark.parametrize(("kind", "words"), [("int4", 8), ("int8", 16), ("mxfp8", 16)])
def test_a_packed_weight_counts_as_what_it_stands_for(kind: str, words: int) -> None:
    """07 PLN-5, 08 API-2: 64 columns, and scale and zero points are no tensors of their own."""
    header = Header(
        (
            _entry("w.weight", "U32", 3, words),
            _entry("w.weight.scale", "F16", 3, 2),
            _entry("w.weight.bias", "F16", 3, 2),
            _entry("other.bias", "F32", 5),
        ),
        {"quant_type": kind, "group_size": "32"},
    )
    assert list(logical_tensors(header)) == [
        LogicalTensor("w.weight", kind, (3, 64)),
        LogicalTensor("other.bias", "f32", (5,)),
    ]


@pytest.mark.parametrize(
    ("head", "layers", "kind"),
    [
        ("int8", {"int4": 3, "int8": 2}, "int4"),
        ("int8", {"int4": 2, "int8": 3}, "int8"),
        ("bf16", {"nvfp4": 2, "mxfp8": 1}, "nvfp4"),
        ("f32", {}, "f32"),
        ("int8", {"int8": 2, "int4": 2}, "int4"),
        ("bf16", {"f32": 1, "i64": 9, "bool": 9}, "f32"),
        ("bf16", {"i64": 9}, "bf16"),
    ],
)
def test_the_type_of_weights_is_what_most_of_the_layers_have(
    head: str, layers: dict[str, int], kind: str
) -> None:
    """08 API-2: a table may be most of a small model, and has a type of its own (07 POL-3).
    Integers map ids; they are no weights."""
    tensors = [LogicalTensor("model.embed_tokens.weight", head, (100, 100))]
    tensors += [LogicalTensor(f"a.{each}", each, (10, rows)) for each, rows in layers.items()]
    assert prevailing_kind(tensors) == kind


def test_words_of_no_known_format_count_as_they_are() -> None:
    """07 PLN-5."""
    header = Header((_entry("ids", "U32", 7),), {})
    assert list(logical_tensors(header)) == [LogicalTensor("ids", "u32", (7,))]
