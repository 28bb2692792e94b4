"""The one place that chooses which implementation serves an operation (KER-1).

Choices are made when a layer is built, from its weight, so that a forward branches on nothing and
a fast path may keep the weight in a layout of its own. An operation that spans a whole layer finds
its place here too: a function that takes the weights of the layer's parts and answers with a
kernel, or with None and the reason in the log.
"""

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from forerun.base.logs import logger
from forerun.kernels.linear_affine import torch_int4
from forerun.kernels.linear_affine.reference import ReferenceLinear
from forerun.kernels.operands import AffineWeight
from forerun.kernels.rms_norm import layer_norm_form
from forerun.kernels.rms_norm.reference import ReferenceRmsNorm

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Which fast paths may serve; built once by the composition root and handed down."""

    cpu_kernels: bool = True  # False: references only


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


def affine_linear(weight: AffineWeight, dtype: torch.dtype, choice: KernelChoice) -> LinearKernel:
    """The kernel for products of `dtype` activations with `weight`."""
    reason = _refused(weight.words, choice) or torch_int4.why_not(weight, dtype)
    if reason is None:
        return torch_int4.TorchInt4Linear(weight, dtype)
    _log_once(f"int{weight.bits} linear dequantises its weight for each call", reason)
    return ReferenceLinear(weight)


def rms_norm(weight: Tensor | None, eps: float, choice: KernelChoice) -> RmsNormKernel:
    """The kernel for norms with this weight."""
    reason = _refused(weight, choice) or layer_norm_form.why_not(weight)
    if reason is None:
        return layer_norm_form.LayerNormForm(weight, eps)
    _log_once("norms run as separate operations", reason)
    return ReferenceRmsNorm(weight, eps)


def _refused(weight: Tensor | None, choice: KernelChoice) -> str | None:
    if not choice.cpu_kernels:
        return "CPU kernels are switched off"
    if weight is not None and weight.device.type != "cpu":
        return f"weights are on {weight.device.type}"
    return None


@cache
def _log_once(what: str, reason: str) -> None:
    log.info("%s: %s", what, reason)
