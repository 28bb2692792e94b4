"""Rotary position embedding: parameters, frequencies, tables, rotation (ROP)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.kernels.rope.reference import rotate


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """A rope kind and its numbers, read and checked."""

    kind: str  # default, linear, dynamic, llama3 or yarn
    dim: int  # rotated dimensions of a head, the first ones
    theta: float
    factor: float = 1.0
    max_context: int | None = None  # dynamic: beyond it frequencies would change (ROP-4)


def from_config(
    config: Mapping[str, object], head_dim: int, kind: str | None = None
) -> RopeParameters:
    """Read the parameters from a model's config (ROP-1).

    kind  the layer kind, for families whose `rope_parameters` are nested by it
    """
    del kind
    theta = config.get("rope_theta", 10000.0)
    assert isinstance(theta, int | float)
    return RopeParameters("default", head_dim, float(theta))


def inverse_frequencies(parameters: RopeParameters) -> tuple[Tensor, float]:
    """[dim / 2] float32 inverse frequencies, and the factor on cos and sin (ROP-2 to ROP-6)."""
    powers = torch.arange(0, parameters.dim, 2, dtype=torch.int64).float() / parameters.dim
    return 1.0 / parameters.theta**powers, 1.0


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Cosines and signed sines of one forward's positions, shared by its layers."""

    cos: Tensor  # [B, L, 1, d]
    sin: Tensor  # [B, L, 1, d], the first half negated

    def rotate(self, x: Tensor) -> Tensor:
        """[B, L, heads, D] to the same shape. Queries and keys may be rotated as one tensor."""
        return rotate(x, self.cos, self.sin)


class Rope:
    """One rope kind on one device."""

    def __init__(self, parameters: RopeParameters, device: torch.device) -> None:
        self._parameters = parameters
        frequencies, self._attention_factor = inverse_frequencies(parameters)
        self._frequencies = frequencies.to(device)

    def of_batch(self, batch: Batch, dtype: torch.dtype) -> RopeTables:
        """Tables of a batch's positions, computed once a forward and shared by its layers."""
        key = ("rope", self._parameters, dtype)
        found = batch.memo.get(key)
        if found is None:
            found = batch.memo[key] = self.tables(batch.positions(), dtype)
        assert isinstance(found, RopeTables)
        return found

    def tables(self, positions: Tensor, dtype: torch.dtype) -> RopeTables:
        """Tables in `dtype` for [B, L] int64 positions; angles are computed in float32."""
        angles = positions[..., None, None].float() * self._frequencies
        cos, sin = angles.cos() * self._attention_factor, angles.sin() * self._attention_factor
        return RopeTables(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
