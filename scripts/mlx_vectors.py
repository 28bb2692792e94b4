"""Makes tests/fixtures/mlx_vectors.safetensors: small weights that MLX quantised, in all its modes.

Run it with `mlx[cpu]` installed (0.32.4 made the file): `python scripts/mlx_vectors.py FILE`. What
it writes does not depend on forerun, so that the tests compare with other people's code.
"""

import sys

import mlx.core as mx
import numpy as np

ROWS, COLUMNS = 3, 128
MODES = [
    ("affine", 4, 32),
    ("affine", 4, 64),
    ("affine", 8, 128),
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
]


def weight() -> np.ndarray:
    """Rows of three magnitudes; a group of zeros, a group of one value, values far below a group's
    largest."""
    values = np.random.default_rng(20).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    values *= np.array([[0.02], [1.0], [30.0]], dtype=np.float32)
    values[0, :32] = 0
    values[1, 32:64] = 0.7
    values[2, 64:96] *= 1e-4
    values[2, 64] = 100
    return values


def main() -> None:
    values = mx.array(weight())
    made = {"values": values}
    for mode, bits, group in MODES:
        options = {"mode": mode, "bits": bits, "group_size": group}
        parts = mx.quantize(values, **options)
        name = f"{mode}.{bits}.{group}"
        for part, tensor in zip(("weight", "scales", "biases"), parts, strict=False):
            made[f"{name}.{part}"] = tensor
        made[f"{name}.values"] = mx.dequantize(*parts, **options).astype(mx.float32)
    mx.save_safetensors(sys.argv[1], made)


if __name__ == "__main__":
    main()
