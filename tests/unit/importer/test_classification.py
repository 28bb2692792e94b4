"""What a folder's tensors say of how its weights are stored (07 CLS)."""

from pathlib import Path

import pytest
import torch

from forerun.base.errors import ImportFailedError, RequestError
from forerun.importer.classification import Class, classify, refuse_request, source_tensors
from forerun.importer.layers import config_of
from forerun.importer.sources import folder_source
from unit.importer.source_folders import Shape, entries, write_folder

W = "layers.0.mlp.up_proj.weight"
BLOCKS = {"quantization_config": {"weight_block_size": [128, 128]}}

U32, U8, E4M3, BF16 = ("U32", (64, 8)), ("U8", (64, 32)), ("F8_E4M3", (64, 64)), ("BF16", (64, 64))


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({W: BF16}, Class.FLOAT),
        ({W: BF16, f"{W}_scale": ("F32", ())}, Class.FLOAT),
        ({W: ("U8", (4,))}, Class.FLOAT),
        ({W: U32, W.replace("weight", "scales"): BF16}, Class.PREQUANTISED),
        ({f"{W}_packed": U8}, Class.PREQUANTISED),
        ({W: U8, f"{W}_scale": E4M3}, Class.PREQUANTISED),
        ({W: U32, f"{W}_scale": E4M3}, Class.PREQUANTISED),
        ({W: E4M3, f"{W}_scale": BF16}, Class.BLOCK_FP8),
        ({W: E4M3}, Class.BLOCK_FP8),
        ({W: E4M3, "other.scales": BF16}, Class.PREQUANTISED),
    ],
)
def test_tensors_tell_how_weights_are_stored(
    tensors: dict[str, tuple[str, Shape]], expected: Class
) -> None:
    """CLS-1, CLS-2: no configuration is asked."""
    assert classify(entries(**tensors)) is expected


@pytest.mark.parametrize("dtype", ["F8_E5M2", "F8_E4M3FNUZ", "F4", "F6_E2M3"])
def test_small_floats_that_are_not_read_are_refused(dtype: str) -> None:
    """CLS-3, 07 T11: the tensor is named."""
    with pytest.raises(ImportFailedError, match=rf"{W} is of type {dtype}"):
        classify(entries(**{W: (dtype, (64, 64)), "other": BF16}))


@pytest.mark.parametrize("found", [Class.BLOCK_FP8, Class.PREQUANTISED])
def test_what_is_quantised_is_not_quantised_again(found: Class) -> None:
    """CLS-3, CLS-4: the message names the value and the remedy."""
    with pytest.raises(RequestError, match=r"quantize is int4.*leave quantize out"):
        refuse_request(found, "int4")
    refuse_request(found, "")
    refuse_request(Class.FLOAT, "int4")


@pytest.mark.parametrize(
    ("config", "stated"),
    [
        ({}, "None"),
        ({"quantization_config": {"weight_block_size": [64, 128]}}, r"\[64, 128\]"),
        ({"quantization_config": {"config_groups": {"group_0": {}}}}, "None"),
        ({"quantization_config": 3}, "None"),
    ],
)
def test_blocks_of_another_size_are_refused(config: dict[str, object], stated: str) -> None:
    """CLS-3, 07 T11."""
    tensors = entries(**{W: E4M3, f"{W}_scale_inv": ("F32", (1, 1))})
    with pytest.raises(ImportFailedError, match=rf"{W} is E4M3.*weight_block_size.*{stated}"):
        source_tensors(Class.BLOCK_FP8, tensors, config)


def test_compressed_tensors_states_its_blocks_elsewhere() -> None:
    """CLS-3."""
    weights = {"block_structure": [128, 128]}
    config = {"quantization_config": {"config_groups": {"group_0": {"weights": weights}}}}
    tensors = entries(**{W: E4M3, f"{W}_scale": ("BF16", (1, 1))})
    (source,) = source_tensors(Class.BLOCK_FP8, tensors, config).values()
    assert source.scale is not None


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({W: E4M3}, f"{W} is E4M3 and has no scales"),
        ({W: E4M3, f"{W}_scale_inv": ("F32", (2, 1))}, rf"{W}_scale_inv has shape \[2, 1\]"),
        ({W: E4M3, f"{W}_scale": ("F32", ())}, rf"{W}_scale has shape \[\]"),
        ({W: E4M3, f"{W}_scale_inv": ("F8_E8M0", (1, 1))}, "of type F8_E8M0"),
        ({"norm": ("F8_E4M3", (64,)), "norm_scale": ("F32", (1,))}, "norm_scale has shape"),
    ],
)
def test_scales_that_do_not_fit_their_weight_are_named(
    tensors: dict[str, tuple[str, Shape]], message: str
) -> None:
    """07 T11."""
    with pytest.raises(ImportFailedError, match=message):
        source_tensors(Class.BLOCK_FP8, entries(**tensors), BLOCKS)


def file_type(folder: Path, tensors: dict[str, torch.Tensor], **config: object) -> str:
    return config_of(folder_source(write_folder(folder, tensors, **config))).file_type


def affine(bits: int) -> dict[str, torch.Tensor]:
    words = torch.zeros(4, 64 * bits // 32, dtype=torch.int32).view(torch.uint32)
    path = f"layers.{bits}.mlp.up_proj"
    groups = torch.ones(4, 1, dtype=torch.bfloat16)
    return {f"{path}.weight": words, f"{path}.scales": groups, f"{path}.biases": groups}


def test_the_file_type_of_a_quantised_source(tmp_path: Path) -> None:
    """CLS-5: its one type, whatever stayed dense, and nothing where there are two; of what is not
    quantised the type that is listed (decision 0021)."""
    dense = {"embed.weight": torch.ones(4, 4)}
    stated = {"group_size": 64, "bits": 4, "layers.8.mlp.up_proj": {"group_size": 64, "bits": 8}}
    assert file_type(tmp_path, affine(4) | dense, quantization=stated) == "int4"
    assert file_type(tmp_path, affine(8) | dense, quantization=stated) == "int8"
    assert file_type(tmp_path, affine(4) | affine(8), quantization=stated) == ""
    assert file_type(tmp_path, dense) == "f32"
    assert file_type(tmp_path, dense | {"b": torch.ones(5, 5).half()}) == "f16"
    fp8 = torch.ones(64, 64).to(torch.float8_e4m3fn)
    tensors = {W: fp8, f"{W}_scale_inv": torch.ones(1, 1)}
    assert file_type(tmp_path, tensors | dense, **BLOCKS) == "mxfp8"
