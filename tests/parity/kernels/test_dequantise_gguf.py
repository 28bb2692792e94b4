"""Values of the stored layout against those of the `gguf` package, bit for bit (GUF-9, PLN-5)."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.operands import AffineWeight
from forerun.quant.codec import pack

ROWS, COLUMNS, GROUP = 5, 96, 32


def random_blocks(kind: GGMLQuantizationType, octets: int) -> np.ndarray:
    """Blocks of random bytes, but for the fp16 terms in front."""
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (ROWS, COLUMNS // GROUP, octets), dtype=np.uint8)
    terms = 2 if kind == GGMLQuantizationType.Q4_1 else 1
    halves = random.normal(size=(ROWS, COLUMNS // GROUP, terms)).astype(np.float16)
    blocks[..., : 2 * terms] = halves.view(np.uint8)
    return blocks


def halves(blocks: np.ndarray, term: int) -> torch.Tensor:
    part = np.ascontiguousarray(blocks[..., 2 * term : 2 * term + 2])
    return torch.from_numpy(part.view(np.float16)[..., 0])


def nibbles(octets: np.ndarray) -> torch.Tensor:
    """Codes in column order: a block's low nibbles are its first half."""
    codes = np.concatenate((octets & 15, octets >> 4), axis=-1)
    return torch.from_numpy(codes.reshape(ROWS, COLUMNS))


def converted(kind: GGMLQuantizationType, blocks: np.ndarray) -> AffineWeight:
    scale = halves(blocks, 0)
    if kind == GGMLQuantizationType.Q4_0:
        return AffineWeight(pack(nibbles(blocks[..., 2:]), 4), scale, -8 * scale, 4)
    if kind == GGMLQuantizationType.Q4_1:
        return AffineWeight(pack(nibbles(blocks[..., 4:]), 4), scale, halves(blocks, 1), 4)
    unsigned = blocks[..., 2:] ^ 128
    codes = torch.from_numpy(unsigned.reshape(ROWS, COLUMNS))
    return AffineWeight(pack(codes, 8), scale, -128 * scale, 8)


@pytest.mark.parametrize(
    ("kind", "octets"),
    [
        (GGMLQuantizationType.Q4_0, 18),
        (GGMLQuantizationType.Q4_1, 20),
        (GGMLQuantizationType.Q8_0, 34),
    ],
)
def test_blocks_keep_their_values(kind: GGMLQuantizationType, octets: int) -> None:
    """GUF-9, GUF-2"""
    blocks = random_blocks(kind, octets)
    want = quants.dequantize(blocks.reshape(ROWS, -1), kind)
    got = dequantise(converted(kind, blocks), torch.float32)
    assert torch.equal(got, torch.from_numpy(want))
