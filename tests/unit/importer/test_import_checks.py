"""What an import refuses, or warns of, before or while it reads a checkpoint (F01, F07, F13)."""

import io
import json
import logging
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from fixtures.checkpoints import edit_config, edit_tensors
from fixtures.tiny import Family, tiny_folder
from forerun.base.errors import ImportFailedError
from forerun.base.logs import ROOT
from forerun.importer.sources import folder_source
from forerun.importer.write import write_tensors
from forerun.store.store import Store
from unit.importer.conftest import Create, Refuse
from unit.importer.gguf_files import convert_folder

Q8_0 = GGMLQuantizationType.Q8_0
NORM = "model.layers.1.post_attention_layernorm.weight"


def test_a_missing_tensor_is_named(folder: Path, refuse: Refuse, store: Store) -> None:
    """F13, 07 T11: nothing is filled in, and nothing is written."""
    edit_tensors(folder, lambda tensors: {n: t for n, t in tensors.items() if n != NORM})
    refuse("FROM tiny", NORM)
    assert not store.folders.blobs.exists()


def test_a_missing_tensor_of_a_gguf_file_is_named(
    folder: Path, tmp_path: Path, refuse: Refuse
) -> None:
    """F13."""
    edit_tensors(folder, lambda tensors: {n: t.float() for n, t in tensors.items() if n != NORM})
    convert_folder(folder, tmp_path / "a.gguf", "llama")
    refuse("FROM a.gguf", r"blk\.1\.ffn_norm\.weight")


def test_a_special_token_outside_the_vocabulary_is_named(
    folder: Path, tmp_path: Path, refuse: Refuse
) -> None:
    """TOK-4."""
    edit_tensors(folder, lambda tensors: {n: t.float() for n, t in tensors.items()})
    stated = {"tokenizer.ggml.bos_token_id": 259}
    convert_folder(folder, tmp_path / "a.gguf", "llama", extra=stated)
    refuse("FROM a.gguf", r"bos_token_id is 259, and there are 259 tokens")


def test_a_part_of_a_split_gguf_file_is_refused(
    folder: Path, tmp_path: Path, refuse: Refuse
) -> None:
    edit_tensors(folder, lambda tensors: {n: t.float() for n, t in tensors.items()})
    convert_folder(folder, tmp_path / "a.gguf", "llama", extra={"split.count": 3})
    refuse("FROM a.gguf", "one of several parts")


def test_a_misshapen_tensor_is_named(folder: Path, refuse: Refuse) -> None:
    """F13."""
    edit_tensors(folder, lambda tensors: tensors | {NORM: torch.ones(63)})
    refuse("FROM tiny", NORM)


def test_surplus_tensors_are_kept_and_listed(
    folder: Path, create_model: Create, caplog: pytest.LogCaptureFixture
) -> None:
    """F13, 06 CON-14: one warning."""
    edit_tensors(folder, lambda tensors: tensors | {"model.extra": torch.ones(3)})
    with caplog.at_level(logging.WARNING, ROOT):
        model = create_model("FROM tiny")
    assert "model.extra" in caplog.text
    assert "model.extra" in [layer.name for layer in model.tensors]


def test_a_surplus_tensor_of_a_gguf_file_stays_on_its_line(
    folder: Path, tmp_path: Path, create_model: Create, caplog: pytest.LogCaptureFixture
) -> None:
    """F13: whatever a file calls its tensors."""

    def add(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        named = {name: tensor.float() for name, tensor in tensors.items()}
        return named | {"model.norm.a\nb\x1b": torch.ones(3)}

    edit_tensors(folder, add)
    convert_folder(folder, tmp_path / "a.gguf", "llama")
    with caplog.at_level(logging.WARNING, ROOT):
        create_model("FROM a.gguf")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == r"a.gguf: 1 tensors are not used: 'output_norm.a\nb\x1b'"


def test_an_unknown_architecture_is_named(folder: Path, refuse: Refuse) -> None:
    """F13."""
    edit_config(folder, architectures=["Foo"])
    refuse("FROM tiny", "Foo")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_what_is_no_finite_number_is_named(
    folder: Path, refuse: Refuse, dtype: torch.dtype, value: float
) -> None:
    """F13, 07 T11: a tensor with one in it stops the import, quantised or not."""

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bad = tensors[NORM].to(dtype)
        bad[5] = value
        return tensors | {NORM: bad}

    edit_tensors(folder, spoil)
    refuse("FROM tiny", rf"{NORM} holds values that are no finite numbers")


def test_a_nan_scale_of_a_gguf_file_is_named(folder: Path, tmp_path: Path, refuse: Refuse) -> None:
    """F13."""

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        tensors["model.layers.0.mlp.up_proj.weight"][3, 3] = float("inf")
        return tensors

    edit_tensors(folder, spoil)
    with pytest.warns(RuntimeWarning):  # the gguf package divides by the infinite scale
        convert_folder(folder, tmp_path / "a.gguf", "llama", matrices=Q8_0)
    refuse("FROM a.gguf", r"blk\.0\.ffn_up\.weight holds values")


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_an_infinite_norm_of_a_gguf_file_is_named(
    tmp_path: Path, refuse: Refuse, family: Family
) -> None:
    """F13: of gemma it is moved by one on the way."""
    folder = tiny_folder(tmp_path / "of", family)

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors["model.norm.weight"][3] = float("inf")
        return tensors

    edit_tensors(folder, spoil)
    stated = {"gemma3.attention.sliding_window": 8} if family == "gemma3" else {}
    convert_folder(folder, tmp_path / "a.gguf", family, extra=stated)
    refuse("FROM a.gguf", r"tensor output_norm\.weight holds values")


def test_a_truncated_shard_is_named(folder: Path, refuse: Refuse) -> None:
    """F13, 07 T6."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    refuse("FROM tiny", r"model\.safetensors is truncated")


def test_a_file_that_shrinks_while_it_is_read_is_an_error(folder: Path) -> None:
    """F13: the tensor is named; what is gone is not read as zeros."""
    checkpoint = folder_source(folder).checkpoint
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    last = max(checkpoint.blobs, key=lambda blob: read_offset(weights, blob.name))
    with pytest.raises(ImportFailedError, match=f"ends inside tensor {last.name}"):
        write_tensors(checkpoint.open(last), io.BytesIO())


def read_offset(path: Path, name: str) -> int:
    """Where a tensor ends, by the header of its file."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    end = header[name]["data_offsets"][1]
    assert isinstance(end, int)
    return end


def test_an_index_that_asks_for_more_is_incomplete(tmp_path: Path, refuse: Refuse) -> None:
    """07 T6, INV-2: the tensor is named."""
    folder = tiny_folder(tmp_path / "tiny", "llama", shard_size="60KB")
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.more"] = document["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(document))
    refuse("FROM tiny", r"incomplete: tensor 'model\.more'")


def test_renumbered_control_tokens_are_refused(folder: Path, refuse: Refuse) -> None:
    """F07, TOK-1: the two files that disagree are both named."""
    path = folder / "tokenizer_config.json"
    document = json.loads(path.read_text())
    entry = document["added_tokens_decoder"].pop("258")
    document["added_tokens_decoder"]["259"] = entry
    path.write_text(json.dumps(document))
    refuse("FROM tiny", r"id 259 in tokenizer_config.* 258 in tokenizer\.json")


def test_a_folder_without_a_tokenizer_is_refused(folder: Path, refuse: Refuse) -> None:
    """TOK-1."""
    (folder / "tokenizer.json").unlink()
    refuse("FROM tiny", r"no tokenizer\.json")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shipped", [True, False])
def test_tied_heads(
    tmp_path: Path, create_model: Create, refuse: Refuse, tied: bool, shipped: bool
) -> None:
    """F01: a missing head is an error that names it, unless the config ties it."""
    folder = tiny_folder(tmp_path / "tiny", "llama", tie_word_embeddings=False)
    edit_config(folder, tie_word_embeddings=tied)
    if not shipped:
        edit_tensors(folder, lambda t: {n: v for n, v in t.items() if n != "lm_head.weight"})
    if tied or shipped:
        assert create_model("FROM tiny").tensors
    else:
        refuse("FROM tiny", r"lm_head")
