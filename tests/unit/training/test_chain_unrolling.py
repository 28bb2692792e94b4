"""The unrolled chains of training are the chains that a drafter makes, one base at a time.

The reference below keeps a list of keys and values for one base and runs its rows one by one, as a
drafter with a cache of its own does (EGL-4, EGL-5).
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from forerun.training.head import Head, HeadShape
from forerun.training.unroll import Masks, unroll

SHAPE = HeadShape(
    hidden=16,
    intermediate=24,
    heads=4,
    kv_heads=2,
    head_dim=8,
    taps=3,
    columns=10,
    eps=1e-5,
    rope_theta=10000.0,
)
WIDTH, STEPS = 6, 4


@pytest.fixture
def head() -> Head:
    generator = torch.Generator().manual_seed(1)
    head = Head(SHAPE)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / 4 if parameter.dim() == 2 else 1 + 0.3 * noise)
    return head


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + SHAPE.eps) * weight


class _Drafter:
    """One row at a time over its own list of keys and values."""

    def __init__(self, head: Head) -> None:
        self.head, self.keys, self.values = head, [], []

    def row(self, embedded: Tensor, state: Tensor, position: int) -> Tensor:
        layer = self.head.layer
        joined = torch.cat(
            (
                _norm(embedded, layer.input_layernorm.weight),
                _norm(state, layer.hidden_norm.weight),
            )
        )
        parts = layer.self_attn
        query = self._turned(parts.q_proj(joined).view(4, 8), position)
        self.keys.append(self._turned(parts.k_proj(joined).view(2, 8), position))
        self.values.append(parts.v_proj(joined).view(2, 8))
        attended = []
        for number in range(4):
            keys = torch.stack([key[number // 2] for key in self.keys])
            values = torch.stack([value[number // 2] for value in self.values])
            scores = (keys @ query[number] / 8**0.5).softmax(0)
            attended.append(scores @ values)
        state = state + parts.o_proj(torch.cat(attended))
        normed, mlp = _norm(state, layer.post_attention_layernorm.weight), layer.mlp
        gated = functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed)
        return state + mlp.down_proj(gated)

    def _turned(self, x: Tensor, position: int) -> Tensor:
        angles = position * 10000.0 ** -(torch.arange(0, 8, 2) / 8)
        first, second = x[:, :4], x[:, 4:]
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), 1)


def test_every_step_of_every_base_is_a_drafters_own(head: Head) -> None:
    generator = torch.Generator().manual_seed(2)
    taps = torch.randn(1, WIDTH, 3 * SHAPE.hidden, generator=generator)
    table = torch.randn(WIDTH + STEPS + 1, SHAPE.hidden, generator=generator)  # of each position

    def embed(step: int, _: Tensor | None) -> Tensor:
        return table[1 + step : 1 + step + WIDTH][None]

    with torch.no_grad():
        found = list(unroll(head, taps, embed, Masks(torch.device("cpu")), steps=STEPS))
        conditioning = _norm(taps[0], head.input_norm.weight) @ head.fc.weight.T
        for base in range(WIDTH):
            drafter = _Drafter(head)
            for place in range(base + 1):
                state = drafter.row(table[place + 1], conditioning[place], place)
            chain = [state]
            for step in range(1, STEPS):
                state = drafter.row(table[base + 1 + step], state, base + step)
                chain.append(state)
            torch.testing.assert_close(
                torch.stack([streams[0, base] for streams in found]),
                torch.stack(chain),
                rtol=1e-4,
                atol=1e-4,
            )


def test_a_step_may_depend_on_what_the_step_before_it_made(head: Head) -> None:
    taps = torch.randn(2, WIDTH, 3 * SHAPE.hidden)
    seen = []

    def embed(_: int, state: Tensor | None) -> Tensor:
        seen.append(state)
        return torch.zeros(2, WIDTH, SHAPE.hidden)

    states = list(unroll(head, taps, embed, Masks(torch.device("cpu")), steps=3))
    assert seen[0] is None
    assert seen[1] is states[0]
    assert seen[2] is states[1]
