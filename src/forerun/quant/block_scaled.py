"""Codes and scales of block-scaled formats: the small floats nearest to the values of groups.

Rounding is to nearest, ties to even, and saturates. Values are computed in float32, in which
scaling by a power of two rounds nothing.
"""

import math

import torch
from torch import Tensor

from forerun.kernels.dequantise.floats import scale_values

E2M1_LARGEST = 6.0
E4M3_LARGEST = 448.0
_BIAS = 127  # of the exponents of e8m0 and float32


def row_factors(groups: Tensor) -> Tensor:
    """[rows] float32: the global scales with which nvfp4 just reaches a row's largest value.

    A power of two rounds nothing; and one a row lets rows be quantised apart from each other.
    """
    largest = groups.abs().flatten(1).amax(1)
    exponent = _exponent_to_reach(largest, E4M3_LARGEST * E2M1_LARGEST)
    return _power_of_two(exponent)


def encode(groups: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """uint8 codes [rows, groups, columns] and scales [rows, groups] of float32 values."""
    scale = _scales(groups, kind)
    steps = scale_values(scale, kind)[..., None]
    scaled = groups / torch.where(steps > 0, steps, torch.inf)  # a scale of 0 wants codes of 0
    return (_e4m3(scaled) if kind == "mxfp8" else _e2m1(scaled)), scale


def _scales(groups: Tensor, kind: str) -> Tensor:
    largest = groups.abs().amax(-1)
    if kind == "nvfp4":
        return _e4m3(largest / E2M1_LARGEST)
    if kind == "mxfp8":
        return _e8m0(_exponent_to_reach(largest, E4M3_LARGEST))
    return _better_of_two(groups, _exponent_to_reach(largest, E2M1_LARGEST))


def _better_of_two(groups: Tensor, reaching: Tensor) -> Tensor:
    """mxfp4 scales: those that reach the largest value, or half of them where that errs less.

    Halving cuts off what is largest and halves the steps of what is smallest. Of normally
    distributed values the error is 3.4 % smaller than with scales that always reach.
    """
    scaled = groups / _power_of_two(reaching)[..., None]
    better = _squared_errors(2 * scaled) < 4 * _squared_errors(scaled)
    return _e8m0(reaching - better.int())


def _squared_errors(scaled: Tensor) -> Tensor:
    magnitudes = scaled.abs()
    halves, ones, twos = _steps(magnitudes)
    return halves.mul_(0.5).add_(ones).add_(twos, alpha=2).sub_(magnitudes).square_().sum(-1)


def _exponent_to_reach(largest: Tensor, top: float) -> Tensor:
    """The least int32 e with `top * 2**e >= largest`; any for 0.

    Or the largest with which `top` stays in float32: values at its very end are cut off.
    """
    mantissa, exponent = torch.frexp(largest)
    top_mantissa, top_exponent = math.frexp(top)
    least = exponent - top_exponent + (mantissa > top_mantissa).int()
    return least.clamp(max=128 - top_exponent)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent in float32, made of its bits; not below the least normal one."""
    return (exponent.clamp(min=-126) + _BIAS << 23).view(torch.float32)


def _e8m0(exponent: Tensor) -> Tensor:
    return (exponent.clamp(-_BIAS, _BIAS) + _BIAS).to(torch.uint8)


def _e4m3(values: Tensor) -> Tensor:
    return values.to(torch.float8_e4m3fn).view(torch.uint8)


def _e2m1(values: Tensor) -> Tensor:
    halves, ones, twos = _steps(values.abs())
    return halves.add_(ones).add_(twos).to(torch.uint8) | values.signbit().to(torch.uint8) << 3


def _steps(magnitudes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many steps of e2m1 lead from 0 to each: of 0.5 up to 2, of 1 up to 4, of 2 up to 6.

    Their sum is the code. Each kind begins at an even one, so that `round` keeps ties even.
    """
    halves = (2 * magnitudes).clamp_(max=4).round_()
    ones = (magnitudes - 2).clamp_(0, 2).round_()
    twos = (magnitudes / 2).sub_(2).clamp_(0, 1).round_()
    return halves, ones, twos
