"""Rotary position embedding: frequencies of each kind, tables of a forward, rotation (ROP)."""

import math

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.kernels.rope.reference import RopeTables
from forerun.nn.rope_parameters import Linear, Llama3, RopeParameters, Yarn, from_config
from forerun.nn.rope_rows import Addresses, Halves, RopeRows

__all__ = ["Rope", "RopeParameters", "RopeTables", "from_config", "inverse_frequencies"]


def inverse_frequencies(parameters: RopeParameters) -> tuple[Tensor, float]:
    """[dim / 2] float32 inverse frequencies, and the factor on cos and sin (ROP-2 to ROP-6).

    The float32 steps are those of the published implementations, so that models see the angles
    they were trained with.
    """
    steps = torch.arange(0, parameters.dim, 2, dtype=torch.int64).float() / parameters.dim
    plain = 1.0 / parameters.theta**steps
    scaling = parameters.scaling
    if isinstance(scaling, Linear):
        return plain / scaling.factor, 1.0
    if isinstance(scaling, Llama3):
        return _llama3(plain, scaling), 1.0
    if isinstance(scaling, Yarn):
        return _yarn(plain, scaling, parameters), scaling.attention_factor
    return plain, 1.0


def _llama3(plain: Tensor, scaling: Llama3) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_context * plain / (2 * math.pi)  # within the original context
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * plain / scaling.factor + share * plain


def _yarn(plain: Tensor, scaling: Yarn, parameters: RopeParameters) -> Tensor:
    dim = parameters.dim

    def turning(rotations: float) -> float:
        """The dimension whose pair turns so often within the original context."""
        wavelength = scaling.original_context / (rotations * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(parameters.theta))

    low, high = turning(scaling.beta_fast), turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


class Rope:
    """One rope kind on one device."""

    def __init__(self, parameters: RopeParameters, device: torch.device) -> None:
        self._parameters = parameters
        half, factor = inverse_frequencies(parameters)
        signs = torch.ones(2 * len(half))
        signs[: len(half)] = -1
        self._frequencies = torch.cat((half, half)).to(device)
        self._cos_factor, self._sin_factors = factor, (signs * factor).to(device)
        self._rows = RopeRows(len(half), lambda at: _halves(self.tables(at, torch.float32)))

    def of_batch(self, batch: Batch, dtype: torch.dtype) -> RopeTables:
        """Tables of a batch's positions, computed once a forward and shared by its layers."""
        key = ("rope", self._parameters, dtype)
        found = batch.memo.get(key)
        if found is None:
            assert batch.layout is None, "positions of a layout have channels: M-RoPE"
            found = batch.memo[key] = self.tables(batch.positions(), dtype)
        assert isinstance(found, RopeTables)
        return found

    def addresses(self, batch: Batch) -> list[Addresses]:
        """Where the cosines and sines of each row of the batch are: float32 [L, d / 2], on a CPU.

        Valid while both the batch and this live.
        """
        assert batch.layout is None, "positions of a layout have channels: M-RoPE"
        found = [self._rows.addresses(start, batch.width) for start in batch.starts]
        kept = [row for row in found if row is not None]
        return kept if len(kept) == len(found) else self._computed(batch)

    def _computed(self, batch: Batch) -> list[Addresses]:
        halves = _halves(self.of_batch(batch, torch.float32))
        batch.memo["rope halves", self._parameters] = halves  # lives as long as it
        return [
            (cosines.data_ptr(), sines.data_ptr()) for cosines, sines in zip(*halves, strict=True)
        ]

    def tables(self, positions: Tensor, dtype: torch.dtype) -> RopeTables:
        """Tables in `dtype` for [B, L] int64 positions; angles are computed in float32."""
        angles = positions[..., None, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin_().mul_(self._sin_factors)
        if self._cos_factor != 1.0:
            cos.mul_(self._cos_factor)
        return RopeTables(cos.to(dtype), sin.to(dtype))


def _halves(tables: RopeTables) -> Halves:
    """Without what repeats: [B, L, d / 2], contiguous, the sines without their sign."""
    half = tables.cos.shape[-1] // 2
    cosines, sines = tables.cos[..., 0, :half], tables.sin[..., 0, half:]
    return cosines.contiguous(), sines.contiguous()
