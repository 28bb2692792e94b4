"""The one place that chooses which implementation serves an operation (KER-1).

Choices are made when a layer is built, from its weight, so that a forward branches on nothing and
a fast path may keep the weight in a layout of its own. C++ comes first, then what PyTorch ships,
then the reference. An operation that spans whole layers takes the weights of their parts and
answers with kernels, or says in the log why there are none.

Where C++ serves, it serves all layers and the head, or most of the linears that layers are made of
and not a few, since the threads of its team and those of PyTorch would take each other's time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from forerun.base.logs import logger
from forerun.kernels.decoder_layer import native as native_layer
from forerun.kernels.decoder_layer.native import AttentionLayer, DeltaLayer, NativeLayers
from forerun.kernels.layer_operands import LayerOperands
from forerun.kernels.linear_affine import native as native_linear
from forerun.kernels.linear_affine import torch_int4
from forerun.kernels.linear_affine.native import NativeLinear
from forerun.kernels.linear_affine.reference import ReferenceLinear
from forerun.kernels.operands import AffineWeight, BlockScaledWeight
from forerun.kernels.output_head import native as native_head
from forerun.kernels.output_head.native import NativeHead
from forerun.kernels.rms_norm import layer_norm_form
from forerun.kernels.rms_norm.reference import ReferenceRmsNorm

__all__ = [
    "AttentionLayer",
    "DeltaLayer",
    "KernelChoice",
    "LinearKernel",
    "NativeHead",
    "NativeLayers",
    "RmsNormKernel",
    "beside",
    "decoder_layers",
    "output_head",
    "quantised_linear",
    "refused_layers",
    "rms_norm",
    "serves_layers",
]

log = logger(__name__)

Kept = AffineWeight | BlockScaledWeight  # a weight as a checkpoint keeps it


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Which fast paths may serve; built once by the composition root and handed down."""

    cpu_kernels: bool = True  # False: references only
    threads: int = 1  # of the team that runs the C++ kernels
    own_threads: bool = True  # that team may serve; False beside work on PyTorch's threads


class LinearKernel(Protocol):
    """A product with a weight in whatever layout serves it best."""

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of its own; 0 where it reads the weight that it was given."""
        ...


class RmsNormKernel(Protocol):
    """A norm over the last dimension with the weight it was made with."""

    def __call__(self, x: Tensor) -> Tensor: ...


def quantised_linear(weight: Kept, dtype: torch.dtype, choice: KernelChoice) -> LinearKernel:
    """The kernel for products of `dtype` activations with `weight`.

    Fast ones know affine weights, and mxfp4 by its affine form; other formats dequantise.
    C++ takes half of the time of PyTorch's product for one row, and a third for 8 or 512.
    """
    slow = _not_native(weight, dtype, choice)
    if slow is None:
        return NativeLinear(weight, choice.threads)
    reason = _refused(weight.device, choice) or torch_int4.why_not(weight, dtype)
    if reason is None:
        _log_once(f"{_name(weight)} linear runs on PyTorch's packed product", slow)
        return torch_int4.TorchInt4Linear(weight, dtype)
    reasons = slow if reason == slow else f"{slow}; {reason}"
    _log_once(f"{_name(weight)} linear dequantises its weight for each call", reasons)
    return ReferenceLinear(weight)


def beside(
    weights: Iterable[tuple[Kept | None, int]], dtype: torch.dtype, choice: KernelChoice
) -> KernelChoice:
    """`choice` for the separate linears of one model: in C++ if it can serve most of their bytes.

    weights  each with its bytes; None for a dense one
    """
    native = others = 0
    for weight, nbytes in weights:
        if weight is not None and _not_native(weight, dtype, choice) is None:
            native += nbytes
        else:
            others += nbytes
    return replace(choice, own_threads=native > others)


def output_head(weight: Kept, dtype: torch.dtype, choice: KernelChoice) -> LinearKernel:
    """The kernel for a head behind layers of `decoder_layers`, whose stream is of `dtype`."""
    reason = _refused(weight.device, choice) or native_head.why_not(weight)
    if reason is None:
        return NativeHead(weight, choice.threads)
    _log_once("the output head is a linear like others", reason)
    return quantised_linear(weight, dtype, choice)


def serves_layers(
    layers: Sequence[LayerOperands], dtype: torch.dtype, choice: KernelChoice
) -> bool:
    """Whether kernels for whole layers serve all of them with caches of `dtype`, or a log line."""
    reason = next(_reasons(layers, dtype, choice), None)
    if reason is not None:
        refused_layers(reason)
    return reason is None


def decoder_layers(
    layers: list[LayerOperands], dtype: torch.dtype, choice: KernelChoice
) -> NativeLayers:
    """Those kernels. Empties the list, so that sources go one by one (05 LOD-4)."""
    return NativeLayers(layers, dtype, choice.threads)


def refused_layers(reason: str) -> None:
    """Say once why whole layers are not served by one call."""
    _log_once("layers run as separate operations", reason)


def _reasons(
    layers: Sequence[LayerOperands], dtype: torch.dtype, choice: KernelChoice
) -> Iterator[str]:
    """Why each layer that the kernel cannot serve is refused."""
    for layer in layers:
        reason = _refused(layer.output.weight.device, choice) or native_layer.why_not(layer, dtype)
        if reason is not None:
            yield reason


def rms_norm(
    weight: Tensor | None, eps: float, choice: KernelChoice, *, uniform: bool = False
) -> RmsNormKernel:
    """The kernel for norms with this weight.

    uniform  a row's bits do not depend on how many rows there are
    """
    device = None if weight is None else weight.device
    reason = _refused(device, choice) or layer_norm_form.why_not(weight)
    if reason is None:
        return layer_norm_form.LayerNormForm(weight, eps, uniform=uniform)
    _log_once("norms run as separate operations", reason)
    return ReferenceRmsNorm(weight, eps)


def _not_native(weight: Kept, dtype: torch.dtype, choice: KernelChoice) -> str | None:
    """Why C++ does not serve a linear; None if it does."""
    if not choice.own_threads:
        return "most weights beside it run on PyTorch's threads"
    return _refused(weight.device, choice) or native_linear.why_not(weight, dtype)


def _refused(device: torch.device | None, choice: KernelChoice) -> str | None:
    if not choice.cpu_kernels:
        return "CPU kernels are switched off"
    if device is not None and device.type != "cpu":
        return f"weights are on {device.type}"
    return None


def _name(weight: Kept) -> str:
    return weight.kind if isinstance(weight, BlockScaledWeight) else f"int{weight.bits}"


@cache
def _log_once(what: str, reason: str) -> None:
    log.info("%s: %s", what, reason)
