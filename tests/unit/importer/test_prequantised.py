"""Weights that publishers quantised, against values that are worked out by hand (07 PRQ)."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.base.errors import ForerunError
from forerun.importer.prequantised import fuse_parts
from unit.importer.source_folders import Shape, entries, imported, values

PATH = "layers.0.mlp.up_proj"
NAME = f"{PATH}.weight"
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
ALL_CODES = [*E2M1, *(-value for value in E2M1)]  # of four bits, 0 to 15
PACKED = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]  # the codes 0 to 15, two a byte
ONE, TWO = 0x38, 0x40  # in E4M3


def bytes_of(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.uint8)


def words_of(*rows: list[int]) -> Tensor:
    return bytes_of(*rows).view(torch.uint32)


def scales(*rows: list[int]) -> Tensor:
    return bytes_of(*rows).view(torch.float8_e4m3fn)


def imported_values(
    folder: Path, tensors: dict[str, Tensor], name: str = NAME, **config: object
) -> Tensor:
    found, metadata = imported(folder, tensors, **config)
    return values(found, metadata[name], name)


def compressed_tensors(factor: float) -> dict[str, Tensor]:
    """Two rows of 32 columns; a second group and a second row that are twice the first."""
    return {
        f"{PATH}.weight_packed": bytes_of(PACKED * 2, PACKED * 2),
        f"{PATH}.weight_scale": scales([ONE, TWO], [TWO, TWO]),
        f"{PATH}.weight_global_scale": torch.tensor([factor]),
        f"{PATH}.input_global_scale": torch.tensor([3.0]),
    }


def modelopt(factor: float) -> dict[str, Tensor]:
    return {
        f"{PATH}.weight": bytes_of(PACKED * 2, PACKED * 2),
        f"{PATH}.weight_scale": scales([ONE, TWO], [TWO, TWO]),
        f"{PATH}.weight_scale_2": torch.tensor(factor),
        f"{PATH}.input_scale": torch.tensor(3.0),
    }


NVFP4_VALUES = torch.tensor(
    [ALL_CODES + [2 * value for value in ALL_CODES], [2 * value for value in ALL_CODES] * 2]
)


def test_global_scales_divide_or_multiply(tmp_path: Path) -> None:
    """PRQ, 07 T4: compressed-tensors' as its reciprocal, ModelOpt's as it is; equal values."""
    for tensors in (compressed_tensors(8.0), modelopt(0.125)):
        assert torch.equal(imported_values(tmp_path, tensors), NVFP4_VALUES / 8)


@pytest.mark.parametrize("make", [compressed_tensors, modelopt])
def test_nvfp4_is_relabelled_under_one_name(tmp_path: Path, make: object) -> None:
    """PRQ-1, PRQ-2, PLN-5: words, scales and a scalar; activation scales are dropped."""
    assert callable(make)
    norm = torch.ones(8, dtype=torch.bfloat16)
    found, metadata = imported(tmp_path, make(2.0) | {"norm.weight": norm})
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in found.items()}
    assert shapes == {
        "norm.weight": (torch.bfloat16, (8,)),
        NAME: (torch.uint32, (2, 4)),
        f"{NAME}.scale": (torch.uint8, (2, 2)),
        f"{NAME}.global_scale": (torch.float32, ()),
    }
    assert metadata == {"norm.weight": {}, NAME: {"quant_type": "nvfp4", "group_size": "16"}}


def mlx_affine(bits: int, dtype: torch.dtype) -> tuple[dict[str, Tensor], Tensor]:
    """One row of two groups of 32, codes counting up; the values that it stands for."""
    codes = torch.arange(64) % 2**bits
    octets = codes if bits == 8 else codes[0::2] + 16 * codes[1::2]
    tensors = {
        NAME: octets.to(torch.uint8).view(torch.uint32)[None],
        f"{PATH}.scales": torch.tensor([[0.5, 2.0]], dtype=dtype),
        f"{PATH}.biases": torch.tensor([[-1.0, 3.0]], dtype=dtype),
    }
    expected = torch.cat([codes[:32] * 0.5 - 1.0, codes[32:] * 2.0 + 3.0])
    return tensors, expected[None]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_mlx_affine_keeps_its_terms(tmp_path: Path, bits: int, dtype: torch.dtype) -> None:
    """PRQ, PLN-5: biases are zero points, of the type that they have."""
    tensors, expected = mlx_affine(bits, dtype)
    found, metadata = imported(tmp_path, tensors, quantization={"bits": bits, "group_size": 32})
    assert metadata[NAME] == {"quant_type": f"int{bits}", "group_size": "32"}
    assert torch.equal(values(found, metadata[NAME], NAME), expected)
    assert found[f"{NAME}.scale"].dtype == found[f"{NAME}.bias"].dtype == dtype


def test_mlx_states_layers_of_their_own(tmp_path: Path) -> None:
    """PRQ, LIN-2: an entry under a layer's path counts for that layer."""
    tensors, expected = mlx_affine(8, torch.float16)
    own = {PATH: {"bits": 8, "group_size": 32}}
    found = imported_values(tmp_path, tensors, quantization={"bits": 4, "group_size": 64, **own})
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("mode", "octets", "scale", "expected"),
    [
        ("mxfp4", PACKED * 2, [128], [2 * value for value in ALL_CODES * 2]),
        ("nvfp4", PACKED, [TWO], [2 * value for value in ALL_CODES]),
        ("mxfp8", [ONE, TWO, 0xB8, 0x7E] * 8, [126], [0.5, 1.0, -0.5, 224.0] * 8),
    ],
)
def test_mlx_states_its_mode(
    tmp_path: Path, mode: str, octets: list[int], scale: list[int], expected: list[float]
) -> None:
    """PRQ-3: codes and scales keep their bits; there is no global scale."""
    tensors = {NAME: words_of(octets), f"{PATH}.scales": bytes_of(scale)}
    found, metadata = imported(tmp_path, tensors, quantization={"mode": mode})
    assert metadata[NAME]["quant_type"] == mode
    assert set(found) == {NAME, f"{NAME}.scale"}
    assert values(found, metadata[NAME], NAME).tolist() == [expected]


def test_experts_keep_their_own_global_scales(tmp_path: Path) -> None:
    """PLN-2, PRQ-2, LIN-4: stacked in the order of their numbers, one factor a row."""
    tensors: dict[str, Tensor] = {}
    for expert in range(11):
        one = modelopt(0.5**expert)
        tensors |= {
            name.replace(PATH, f"mlp.experts.{expert}.up_proj"): tensor
            for name, tensor in one.items()
        }
    found, metadata = imported(tmp_path, tensors)
    name = "mlp.experts.up_proj.weight"
    assert found[name].shape == (11, 2, 4)
    assert found[f"{name}.scale"].shape == (11, 2, 2)
    expected = torch.cat([NVFP4_VALUES * 0.5**expert for expert in range(11)])
    assert torch.equal(values(found, metadata["mlp.experts"], name), expected)


def of_expert(expert: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    at = f"mlp.experts.{expert}.up_proj"
    return {name.replace(PATH, at): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("lacking", [0, 2])
def test_an_expert_without_a_global_scale_is_named(tmp_path: Path, lacking: int) -> None:
    """PLN-2: it would be 1, or another's."""
    tensors: dict[str, Tensor] = {}
    for expert in range(3):
        tensors |= of_expert(expert, modelopt(0.5))
    del tensors[f"mlp.experts.{lacking}.up_proj.weight_scale_2"]
    message = rf"experts\.{lacking}\.up_proj\.weight_scale_2 is missing"
    with pytest.raises(ForerunError, match=message):
        imported(tmp_path, tensors)


def test_an_expert_whose_scales_are_of_another_type_is_named(tmp_path: Path) -> None:
    """PLN-2"""
    kinds = (torch.bfloat16, torch.float16)
    first, second = (of_expert(index, mlx_affine(4, kind)[0]) for index, kind in enumerate(kinds))
    message = r"1\.up_proj\.scales is F16, and .*0\.up_proj\.scales BF16; experts"
    with pytest.raises(ForerunError, match=message):
        imported(tmp_path, first | second, quantization={"bits": 4, "group_size": 32})


W, GROUPS = ("U32", (64, 8)), ("BF16", (64, 1))
BYTES, FP8 = ("U8", (64, 32)), ("F8_E4M3", (64, 4))
STATED = {"quantization": {"bits": 4, "group_size": 64}}


@pytest.mark.parametrize(
    ("parts", "named", "message"),
    [
        ({"weight": W, "scales": GROUPS}, "scales", "no zero points"),
        ({"weight": W, "biases": GROUPS}, "weight", "other tensors are missing"),
        ({"scales": GROUPS}, "scales", "other tensors are missing"),
        ({"weight_packed": BYTES}, "weight_packed", "other tensors are missing"),
        ({"weight": BYTES}, "weight", "other tensors are missing"),
        ({"weight_scale_2": ("F32", ())}, "weight_scale_2", "other tensors are missing"),
        ({"weight_global_scale": ("F32", (1,))}, "weight_global_scale", "tensors are missing"),
        ({"weight": ("F8_E4M3", (64, 64)), "weight_scale": ("F32", ())}, "weight", "missing or of"),
        ({"weight": W, "scales": ("BF16", (64, 2)), "biases": GROUPS}, "weight", "does not fit"),
        ({"weight": W, "scales": ("BF16", (32, 1)), "biases": GROUPS}, "scales", "does not fit"),
        ({"weight": W, "scales": GROUPS, "biases": ("F32", (64, 1))}, "biases", "unlike its"),
        ({"weight": W, "scales": ("U8", (64, 1))}, "scales", "unlike int4"),
        ({"weight": W, "scales": ("F64", (64, 1)), "biases": GROUPS}, "scales", "of type F64"),
        ({"weight_packed": BYTES, "weight_scale": BYTES}, "weight_scale", "of type U8"),
        ({"weight_packed": ("U8", (64, 31)), "weight_scale": FP8}, "weight_packed", "31 bytes"),
        ({"weight": BYTES, "weight_scale": ("F8_E4M3", (64, 3))}, "weight_scale", "does not fit"),
        ({"weight": BYTES, "weight_scale": FP8}, "weight_scale_2", "missing.*incomplete"),
        (
            {"weight_packed": BYTES, "weight_scale": FP8},
            "weight_global_scale",
            "missing.*incomplete",
        ),
        (
            {"weight": BYTES, "weight_scale": FP8, "weight_scale_2": ("BF16", ())},
            "weight_scale_2",
            "not one F32",
        ),
        (
            {"weight": BYTES, "weight_scale": FP8, "weight_scale_2": ("F32", (64,))},
            "weight_scale_2",
            "not one F32",
        ),
    ],
)
def test_parts_that_make_up_no_weight_are_named(
    parts: dict[str, tuple[str, Shape]], named: str, message: str
) -> None:
    """PRQ, PRQ-1, 07 T11: each error names the tensor at fault, one that is missing as well."""
    tensors = entries(**{f"{PATH}.{part}": entry for part, entry in parts.items()})
    expected = rf"tensor {re.escape(f'{PATH}.{named}')}\b.*{message}"
    with pytest.raises(ForerunError, match=expected) as error:
        fuse_parts(tensors, dict(STATED))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_a_global_scale_is_a_number_above_zero(tmp_path: Path, factor: float) -> None:
    """PRQ-1, F13: a reciprocal of nothing is not written."""
    with pytest.raises(ForerunError, match="weight_global_scale"):
        imported(tmp_path, compressed_tensors(factor))


def test_a_nan_among_scales_is_named(tmp_path: Path) -> None:
    """F13, 07 T11."""
    tensors = modelopt(1.0) | {f"{PATH}.weight_scale": scales([ONE, 0x7F], [ONE, ONE])}
    with pytest.raises(ForerunError, match=r"weight_scale holds values that are no finite numbers"):
        imported(tmp_path, tensors)
