"""Stacks of experts as a checkpoint has them, dense and quantised (LIN-8, LIN-10, LIN-12)."""

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fixtures.checkpoints import placement
from forerun.kernels.select import KernelChoice
from forerun.models.decoder_build import DecoderBuilder, DecoderShape
from forerun.models.experts import ExpertShape, pick_experts
from forerun.models.tensor_files import open_tensors
from forerun.models.weights import Weights
from forerun.nn.layer_weights import ExpertWeights, Heads
from forerun.nn.placement import Placement
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight
from forerun.quant.parts import stored_parts

COUNT, HIDDEN, INNER = 11, 64, 32
SHAPE = ExpertShape(COUNT, 2, renormalised=True, inner=INNER, shared_inner=None, activation="silu")
FORMS = [
    QuantFormat("int4", 32),
    QuantFormat("int8", 32),
    QuantFormat("nvfp4", 16),
    QuantFormat("mxfp4", 32),
    QuantFormat("mxfp8", 32),
]
Values = Mapping[str, Tensor]


def values() -> dict[str, Tensor]:
    seeded = torch.Generator().manual_seed(2)
    sizes = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    return {n: torch.randn(COUNT, *s, generator=seeded) / 8 for n, s in sizes.items()}


def joined(parts: Values) -> Tensor:
    """[experts * 2 * inner, hidden]"""
    return torch.cat((parts["gate_proj"], parts["up_proj"]), 1).flatten(0, 1)


def rounded(stack: Tensor, form: QuantFormat) -> Tensor:
    """The values that its codes stand for."""
    return quantise(stack.flatten(0, -2), form).dequantise(torch.float32).view_as(stack)


def weights_of(
    path: Path, stored: Mapping[str, Tensor], forms: Mapping[str, QuantFormat]
) -> Weights:
    """Tensors by name, quantised those of which there is a form; one file each, as in the store."""
    files = []
    for index, (name, tensor) in enumerate(stored.items()):
        files.append(path / f"{index}.safetensors")
        form = forms.get(name)
        if form is None:
            save_file({name: tensor.contiguous()}, files[-1])
            continue
        rows = tensor.shape[-2]
        parts = stored_parts(quantise(tensor.flatten(0, -2), form))
        stacked = {
            name + suffix: part.view(-1, rows, *part.shape[1:]) if tensor.dim() == 3 else part
            for suffix, part in parts.items()
        }
        metadata = {"quant_type": form.name, "group_size": str(form.group)}
        save_file(stacked, files[-1], metadata)
    return Weights(open_tensors(files), {}, placement())


def picked(
    path: Path, stored: Mapping[str, Tensor], forms: Mapping[str, QuantFormat] | None = None
) -> ExpertWeights:
    router = {"mlp.gate.weight": torch.randn(COUNT, HIDDEN)}
    weights = weights_of(path, {**stored, **router}, forms or {})
    found = pick_experts(weights, "mlp.", SHAPE, HIDDEN)
    assert not weights.surplus
    return found


def one_by_one(parts: Values) -> dict[str, Tensor]:
    return {
        f"mlp.experts.{expert}.{name}.weight": stack[expert]
        for name, stack in parts.items()
        for expert in range(COUNT)
    }


def stacked(parts: Values) -> dict[str, Tensor]:
    return {f"mlp.experts.{name}": stack for name, stack in parts.items()}


def together(parts: Values) -> dict[str, Tensor]:
    joint = torch.cat((parts["gate_proj"], parts["up_proj"]), 1)
    return {"mlp.experts.gate_up_proj": joint, "mlp.experts.down_proj": parts["down_proj"]}


@pytest.mark.parametrize("store", [one_by_one, stacked, together])
def test_dense_stacks_are_one_tensor_byte_for_byte(tmp_path: Path, store) -> None:
    """T4, LIN-10, LIN-12: [E, 2I, in] however it was shipped; experts in the order of numbers."""
    parts = values()
    found = picked(tmp_path, store(parts))
    assert torch.equal(found.gate_up.weight, joined(parts))
    assert torch.equal(found.down.weight, parts["down_proj"].flatten(0, 1))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("store", [one_by_one, stacked, together])
def test_quantised_stacks_keep_their_codes(tmp_path: Path, store, form: QuantFormat) -> None:
    """T4, LIN-6, LIN-8, LIN-10: joined by rows, which is exact."""
    parts = values()
    stored = store(parts)
    found = picked(tmp_path, stored, dict.fromkeys(stored, form))
    pairs = (found.gate_up.weight, joined(parts)), (found.down.weight, parts["down_proj"])
    for weight, dense in pairs:
        assert isinstance(weight, PackedWeight)
        assert weight.format == form
        exact = rounded(dense, form).view(weight.shape)
        assert torch.equal(weight.dequantise(torch.float32), exact)


@pytest.mark.parametrize("store", [one_by_one, stacked])
def test_parts_in_two_formats_are_dequantised_and_told(
    tmp_path: Path, store, caplog: pytest.LogCaptureFixture
) -> None:
    """LIN-6: of gate in int4 and up in int8 the values."""
    parts = values()
    stored = store(parts)
    forms = {name: FORMS[1] if "up_proj" in name else FORMS[0] for name in stored}
    with caplog.at_level(logging.WARNING, "forerun"):
        found = picked(tmp_path, stored, forms)
    assert "experts under mlp. are stored in several formats: dequantised" in caplog.text
    exact = {
        name: quantise(parts[name].flatten(0, 1), form)
        .dequantise(torch.float32)
        .view_as(parts[name])
        for name, form in (("gate_proj", FORMS[0]), ("up_proj", FORMS[1]))
    }
    assert torch.equal(found.gate_up.weight, joined(exact))
    assert isinstance(found.down.weight, PackedWeight)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_quantised_experts_compute_what_their_values_say(
    tmp_path: Path, form: QuantFormat, native: bool
) -> None:
    """LIN-8, T11: formats without a kernel of their own go by their values. Kernels round rows of
    activations to about 15 bits, so that 1e-3 of the largest number holds for all of them."""
    parts = values()
    stored = stacked(parts)
    found = picked(tmp_path, stored, dict.fromkeys(stored, form))
    exact = {name: rounded(part, form) for name, part in parts.items()}
    x = torch.randn(1, 70, HIDDEN, generator=torch.Generator().manual_seed(4))
    kernels = KernelChoice(cpu_kernels=native)
    shape = DecoderShape(1, HIDDEN, INNER, 1, Heads(1, 1, 2), 1e-6, 1, tied=False)
    weights = Weights({}, {}, Placement(torch.float32, torch.device("cpu"), kernels))
    ours = DecoderBuilder(shape, weights, "").experts(found)(x)
    wanted = torch.zeros_like(x)
    chances = (x @ found.router.T).softmax(-1)
    best, chosen = chances.topk(2)
    for row in range(70):
        for weight, expert in zip(best[0, row] / best[0, row].sum(), chosen[0, row], strict=True):
            gate, up, down = (exact[name][expert] for name in ("gate_proj", "up_proj", "down_proj"))
            gated = torch.nn.functional.silu(gate @ x[0, row]) * (up @ x[0, row])
            wanted[0, row] += weight * (down @ gated)
    assert float((ours - wanted).abs().max()) <= 1e-3 * float(wanted.abs().max())
