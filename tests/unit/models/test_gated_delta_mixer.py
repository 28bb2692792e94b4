"""A gated-delta layer of separate operations in bfloat16: what stays float32 (QWN-9, QWN-10)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fixtures.checkpoints import CPU
from forerun.contract.batch import Batch
from forerun.models.blocks import GatedDeltaMixer
from forerun.nn.layer_weights import DeltaWeights
from forerun.nn.linear import Linear
from forerun.nn.norm import RMSNorm
from forerun.nn.recurrence import DeltaHeads, GatedDelta

HEADS = DeltaHeads(key_heads=1, value_heads=2, key_dim=4, value_dim=8)
HIDDEN, CHANNELS, VALUES = 16, 24, 16
EPS = 1e-6


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights() -> DeltaWeights:
    return DeltaWeights(
        heads=HEADS,
        inputs=[],
        gates=drawn(4, HIDDEN, seed=1) / 4,
        conv_weight=torch.tensor([0.0, 0, 0, 1]).repeat(CHANNELS, 1),
        conv_bias=None,
        log_decay=torch.tensor([-1.0, 0.5]),
        step_bias=torch.tensor([0.3, -0.2]),
        norm=RMSNorm(1 + drawn(8, seed=2) / 4, EPS),
    )


def mixer(of: DeltaWeights, dtype: torch.dtype) -> GatedDeltaMixer:
    inputs = Linear((drawn(CHANNELS + VALUES, HIDDEN, seed=3) / 4).to(dtype))
    return GatedDeltaMixer(0, of, inputs, Linear((torch.eye(VALUES)).to(dtype)))


def mixed(of: DeltaWeights, x: Tensor) -> Tensor:
    batch = Batch.of([0] * x.shape[1], 0, CPU)
    return mixer(of, x.dtype)(x, batch, (), None)


def test_a_slow_decay_is_not_rounded_to_bfloat16() -> None:
    """QWN-9: 1 - 2**-11 would become 1; after 600 tokens, of which only the first and the last one
    say anything, that is a third more of the former than there should be."""
    step = functional.softplus(torch.tensor(0.3)).item()
    slow = torch.tensor([2**-11 / step]).log().expand(2)
    kept = replace(weights(), gates=torch.zeros(4, HIDDEN), log_decay=slow)
    kept = replace(kept, step_bias=torch.full((2,), 0.3))
    x = torch.zeros(1, 600, HIDDEN, dtype=torch.bfloat16)
    x[:, ::599] = drawn(2, HIDDEN, seed=5).bfloat16()
    made, exact = mixed(kept, x), mixed(kept, x.float())
    assert made.dtype == torch.bfloat16
    error = (made[0, -1].float() - exact[0, -1]).abs().max()
    assert error <= 0.008 * exact[0, -1].abs().max()
    none = mixed(replace(kept, log_decay=torch.full((2,), -100.0)), x.float())
    assert (none[0, -1] - exact[0, -1]).abs().max() > 0.03 * exact[0, -1].abs().max()


def test_decay_and_beta_are_what_their_definitions_say() -> None:
    """QWN-9: with the state's first value they show in the first two results."""
    of, x = weights(), drawn(1, 2, HIDDEN, seed=6)
    beta, alpha = (x @ of.gates.T).chunk(2, -1)
    decay = torch.exp(-functional.softplus(alpha + of.step_bias) * of.log_decay.exp())
    rows = x @ (drawn(CHANNELS + VALUES, HIDDEN, seed=3) / 4).T
    queries, keys, values, gates = rows.split([4, 4, 16, 16], -1)
    queries, keys, values = (functional.silu(part[0]) for part in (queries, keys, values))
    unit = [part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (queries, keys)]
    state = torch.zeros(2, 8, 4)
    for at in range(2):
        query, key = unit[0][at] / 2, unit[1][at]
        state = state * decay[0, at, :, None, None]
        change = (values[at].view(2, 8) - state @ key) * beta[0, at].sigmoid()[:, None]
        state = state + change[..., None] * key
        result = state @ query
        normed = result * (result.square().mean(-1, keepdim=True) + EPS).rsqrt()
        assert of.norm.factors is not None
        wanted = (normed * of.norm.factors).flatten() * functional.silu(gates[0, at])
        torch.testing.assert_close(mixed(of, x)[0, at], wanted, rtol=0, atol=1e-5)


def test_the_gated_norm_rounds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """QWN-10: in bfloat16 it is, bit for bit, the float32 result of the same rows, cast."""
    of, x = weights(), drawn(1, 5, HIDDEN, seed=7).bfloat16()
    read = drawn(1, 5, 2, 8, seed=8).bfloat16()
    monkeypatch.setattr(GatedDelta, "__call__", lambda *_, **__: read)
    gates = Linear((drawn(CHANNELS + VALUES, HIDDEN, seed=3) / 4).bfloat16())(x)[..., CHANNELS:]
    wide = read.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
    assert of.norm.factors is not None
    wanted = (normed * of.norm.factors).flatten(2) * functional.silu(gates.float())
    torch.testing.assert_close(mixed(of, x), wanted.bfloat16(), rtol=2**-8, atol=0)
    assert (mixed(of, x) == wanted.bfloat16()).float().mean() > 0.9  # but for ties of a norm's sum
