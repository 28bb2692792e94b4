"""Random numbers without state: a pure function of (seed, position, purpose, token id) (SED-1).

A key is mixed on the host from seed, position and purpose; the device mixes token ids into it.
The integers are the same on every device. The mixer is SplitMix64's (Steele, Lea, Flood 2014,
https://doi.org/10.1145/2660193.2660195), all arithmetic modulo 2**64.
"""

from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MODULUS = 2**64
LARGEST_UNIFORM = 1 - 2**-24  # the largest fp32 below 1


class Purpose(IntEnum):
    """Draws of one position that must not depend on each other (SED-3)."""

    TARGET = 0
    ACCEPT = 1
    RESIDUAL = 2
    PROPOSAL = 3


def seed_key(seed: int) -> int:
    """The part of a key that every draw of a slot shares. `seed` is taken modulo 2**64."""
    return _mix(seed + _GOLDEN)


def draw_key(key: int, position: int, purpose: Purpose) -> int:
    """The key of one draw, as a signed 64-bit integer. `key` is the slot's `seed_key`.

    `position` is the place in the sequence that the drawn token will take.
    """
    key = _mix(key + _GOLDEN * (position + 1))
    return _signed(_mix(key + _GOLDEN * (purpose + 1)))


def host_hash(key: int, token: int) -> int:
    """What `hashes` makes of one token, as an unsigned integer. `key` is of `draw_key`."""
    return _mix(key + _GOLDEN * (token + 1))


def hashes(keys: Tensor, ids: Tensor) -> Tensor:
    """64 random bits for every token of every row, as int64.

    keys   [rows] int64, of `draw_key`
    ids    [rows, n] or [n] int64 token ids
    """
    mixed = torch.add(keys[:, None] + _signed(_GOLDEN), ids, alpha=_signed(_GOLDEN))
    mixed.bitwise_xor_(_shifted(mixed, 30)).mul_(_signed(_FIRST))
    mixed.bitwise_xor_(_shifted(mixed, 27)).mul_(_signed(_SECOND))
    return mixed.bitwise_xor_(_shifted(mixed, 31))


def uniform(keys: Tensor, ids: Tensor) -> Tensor:
    """Floats strictly between 0 and 1, [rows, n] fp32; arguments as in `hashes`."""
    # 2 * (r >> 33) + 1 is the upper half of r with its lowest bit set.
    odd = _shifted(hashes(keys, ids), 32).bitwise_or_(1)
    return odd.to(torch.float32).mul_(2**-32).clamp_max_(LARGEST_UNIFORM)


def gumbel(keys: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise, finite, [rows, n] fp32; arguments as in `hashes`."""
    exponential = uniform(keys, ids).neg_().log1p_().neg_()
    return exponential.log_().neg_()


def row_uniform(keys: Tensor) -> Tensor:
    """One uniform a row, [rows] fp32: that of token 0, for draws that concern no token."""
    return uniform(keys, keys.new_zeros(1)).squeeze(-1)


def bernoulli(probability: Tensor, keys: Tensor) -> Tensor:
    """[rows] bool, true with `probability` [rows]: always at 1, never at 0 (DST-9)."""
    return row_uniform(keys) < probability


def _mix(z: int) -> int:
    z %= _MODULUS
    z = (z ^ (z >> 30)) * _FIRST % _MODULUS
    z = (z ^ (z >> 27)) * _SECOND % _MODULUS
    return z ^ (z >> 31)


def _signed(z: int) -> int:
    return z - _MODULUS if z >= _MODULUS // 2 else z


def _shifted(z: Tensor, bits: int) -> Tensor:
    """A logical right shift: int64 tensors shift copies of the sign in."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
