"""A checkpoint's tensors: missing, misshapen, surplus, damaged (F13), renamed and quantised."""

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fixtures.checkpoints import edit_config, edit_tensors, loaded, logits, placement, read_config
from fixtures.tiny import VOCABULARY, tiny_folder
from forerun.base.errors import LoadError, MachineError
from forerun.models.load import load_model
from forerun.models.tensor_files import open_tensors
from forerun.models.weights import Weights

NORM = "model.layers.1.post_attention_layernorm.weight"
TOKENS = list(range(20))


def open_weights(path: Path, tensors: dict[str, Tensor], **metadata: str) -> Weights:
    file = path / "model.safetensors"
    save_file(tensors, file, metadata)
    return Weights(open_tensors([file]), {}, placement())


def test_a_missing_tensor_is_named_with_its_layer(tmp_path: Path) -> None:
    """TEN-1, LIN-1 (F13)"""
    folder = tiny_folder(tmp_path, "llama")
    edit_tensors(folder, lambda tensors: {n: t for n, t in tensors.items() if n != NORM})
    with pytest.raises(LoadError, match="post_attention_layernorm of layer 1 is missing.*" + NORM):
        loaded(folder)


def test_a_missing_embedding_names_where_it_was_looked_for(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    edit_tensors(folder, lambda tensors: {"a." + name: t for name, t in tensors.items()})
    with pytest.raises(LoadError, match=r"none of the tensors model\.embed_tokens\.weight"):
        loaded(folder)


@pytest.mark.parametrize("name", [NORM, "model.layers.0.self_attn.k_proj.weight"])
def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path, name: str) -> None:
    """(F13)"""
    folder = tiny_folder(tmp_path, "llama")
    edit_tensors(folder, lambda tensors: tensors | {name: torch.zeros(3, 5)})
    with pytest.raises(LoadError, match=rf"{name} has shape \[3, 5\] .* \[\d+(, \d+)?\]"):
        loaded(folder)


@pytest.mark.parametrize("part", ["", "_scale"])
def test_a_lone_number_is_no_quantised_weight(tmp_path: Path, part: str) -> None:
    """LIN-1: a broken checkpoint's mistake, and not an error of ours."""
    tensors = {"p.weight": torch.zeros(8, 4, dtype=torch.int32), "p.weight_scale": torch.ones(8, 1)}
    weights = open_weights(tmp_path, tensors | {f"p.weight{part}": torch.tensor(1)})
    with pytest.raises(LoadError, match=r"p\.weight"):
        weights.pick(32, ("p", 8))


def test_surplus_tensors_are_listed_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CON-14, LOD-3: known leftovers are not listed (F13)."""
    folder = tiny_folder(tmp_path, "llama")
    surplus = {f"mtp.{index}": torch.zeros(2) for index in range(10)}
    leftover = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    draft = {"draft.fc.weight": torch.zeros(2)}
    edit_tensors(folder, lambda tensors: tensors | surplus | leftover | draft)
    with caplog.at_level(logging.WARNING, "forerun"):
        loaded(folder)
    (record,) = caplog.records
    assert record.getMessage().startswith("10 tensors of the checkpoint are not used: 'mtp.0', ")


def test_a_surplus_quantised_weight_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CON-14: a part of a weight that is used, or of none, is told for itself."""
    parts = {f"extra.weight{part}": torch.ones(1) for part in ("", "_scale", "_qbias")}
    alone = {"other.weight_scale": torch.ones(1)}
    with caplog.at_level(logging.WARNING, "forerun"):
        open_weights(tmp_path, parts | alone | {"bro\nken": torch.ones(1)}).finish()
    (record,) = caplog.records
    names = r"'bro\nken', 'extra.weight', 'other.weight_scale'"
    assert record.getMessage() == f"3 tensors of the checkpoint are not used: {names}"


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    """(F13)"""
    folder = tiny_folder(tmp_path, "llama")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(MachineError, match=f"{file} cannot be read"):
        loaded(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"gone\.safetensors cannot be read"):
        open_tensors([tmp_path / "gone.safetensors"])


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(LoadError, match=r"tensor x is in both .*a\.safetensors and .*b\.saf"):
        open_tensors(sorted(tmp_path.iterdir()))


def test_a_file_that_is_named_twice_is_opened_once(tmp_path: Path) -> None:
    """LOD-1: each blob digest once."""
    file = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(1)}, file)
    assert list(open_tensors([file, file])) == ["x"]


def test_parts_of_a_weight_get_the_names_that_linears_look_for(tmp_path: Path) -> None:
    """LOD-2: decided over all files, since the scale may lie in another one."""
    save_file(
        {"q.weight.bias": torch.zeros(1), "q.bias": torch.zeros(1)}, tmp_path / "a.safetensors"
    )
    save_file(
        {"q.weight": torch.zeros(1), "q.weight.scale": torch.zeros(1)}, tmp_path / "b.safetensors"
    )
    names = open_tensors(sorted(tmp_path.iterdir()))
    assert set(names) == {"q.weight", "q.weight_scale", "q.weight_qbias", "q.bias"}


def test_integers_without_a_scale_are_refused(tmp_path: Path) -> None:
    """LOD-7: a weight is present or it is not; half of a quantised one is an error."""
    weights = open_weights(tmp_path, {"q.weight": torch.zeros(2, 2, dtype=torch.int8)})
    with pytest.raises(LoadError, match=r"q\.weight holds torch\.int8 values without a scale"):
        weights.pick(2, ("q", 2))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_a_head_that_holds_no_floats_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    """LOD-7"""
    folder = tiny_folder(tmp_path, "llama")
    edit_config(folder, tie_word_embeddings=False)
    head = torch.zeros(VOCABULARY, 64, dtype=dtype)
    edit_tensors(folder, lambda tensors: tensors | {"lm_head.weight": head})
    with pytest.raises(LoadError, match=rf"lm_head\.weight holds {dtype} values without a scale"):
        loaded(folder)


@pytest.mark.parametrize("name", ["k", "v"])
def test_shapes_are_checked_before_memory_is_taken(tmp_path: Path, name: str) -> None:
    """LOD-7: a fused weight or bias is as large as its parts, whatever the config asks for."""
    tensors = {f"{part}.weight": torch.zeros(2, 2) for part in "qkv"}
    weights = open_weights(tmp_path, tensors | {f"{part}.bias": torch.zeros(2) for part in "qkv"})
    parts = [(part, 2**62 if part == name else 2) for part in "qkv"]
    with pytest.raises(LoadError, match=rf"tensor {name}\.bias has shape \[2\]"):
        weights.pick(2, *parts)
    unbiased = open_weights(tmp_path, tensors)
    with pytest.raises(LoadError, match=rf"tensor {name}\.weight has shape \[2, 2\]"):
        unbiased.pick(2, *parts)


def test_weights_are_cast_to_the_dtype_of_activations(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama", dtype=torch.bfloat16)
    exact = logits(loaded(folder), TOKENS)
    assert exact.dtype == torch.float32
    rounded = logits(loaded(folder, torch.bfloat16), TOKENS)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.5, rtol=0.1)


def test_progress_is_reported_by_bytes(tmp_path: Path) -> None:
    """LOD-1"""
    folder = tiny_folder(tmp_path, "llama")
    file = folder / "model.safetensors"
    heard: list[tuple[int, int]] = []
    load_model(
        read_config(folder), [file], placement(), lambda done, total: heard.append((done, total))
    )
    done = [completed for completed, _ in heard]
    assert {total for _, total in heard} == {file.stat().st_size}
    assert done == sorted(done)
    assert done[-1] == file.stat().st_size
    assert len(done) > 20


def test_a_dry_load_checks_without_reading(tmp_path: Path) -> None:
    """What an import asks before it writes a manifest: every tensor there, in shape."""
    folder = tiny_folder(tmp_path, "gemma3")
    file = folder / "model.safetensors"
    model = load_model(read_config(folder), [file], placement(device=torch.device("meta")))
    assert model.facts.layers == 4
    edit_tensors(folder, lambda tensors: tensors | {NORM: torch.zeros(3)})
    with pytest.raises(LoadError, match=NORM):
        load_model(read_config(folder), [file], placement(device=torch.device("meta")))


def test_a_file_replaced_by_rename_changes_nothing(tmp_path: Path) -> None:
    """LOD-11: a mapped weight outlives the name of its file."""
    folder = tiny_folder(tmp_path, "llama")
    model = loaded(folder)
    before = logits(model, TOKENS)
    other = tiny_folder(tmp_path / "other", "llama", seed=1)
    (other / "model.safetensors").replace(folder / "model.safetensors")
    assert torch.equal(logits(model, TOKENS), before)
    assert not torch.equal(logits(loaded(folder), TOKENS), before)


def test_llama_inside_a_container(tmp_path: Path) -> None:
    """LLA-1: the prefix of checkpoints whose language model is one part of several."""
    folder = tiny_folder(tmp_path, "llama")
    wanted = logits(loaded(folder), TOKENS)
    edit_tensors(folder, lambda tensors: {f"language_model.{n}": t for n, t in tensors.items()})
    assert torch.equal(logits(loaded(folder), TOKENS), wanted)
