"""Decoding makes no more logits than decide the draw: 05 DEC-7 over a target that ranks them."""

import pytest
import torch

from fixtures.toy import ToyTarget, ask, endless, loaded_toy
from forerun.contract.model import Best
from forerun.sampling.options import SamplingOptions

MOST = 6


class RankingToy(ToyTarget):
    """`asked` lists what each draw took: so many of the best, or None for all logits."""

    def __init__(self) -> None:
        super().__init__(endless, peak=2.0)
        self.asked: list[int | None] = []

    def best(self, hidden: torch.Tensor, count: int) -> Best | None:
        if count > MOST:
            return None
        self.asked.append(count)
        values, ids = hidden.sort(dim=-1, descending=True, stable=True)
        return Best(values[:, :count], ids[:, :count])

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        self.asked.append(None)
        return super().unembed(hidden)


@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"temperature": 0.0}, [1, 1, 1, 1]),
        ({"temperature": 1.0, "top_k": 4, "seed": 3}, [4, 4, 4, 4]),
        ({"temperature": 0.0, "repeat_penalty": 1.5, "repeat_last_n": 2}, [3, 3, 3, 3]),
        ({"temperature": 1.0, "top_k": MOST + 1, "seed": 3}, [None] * 4),
        ({"temperature": 1.0, "top_k": 0, "seed": 3}, [None] * 4),
        ({"temperature": 0.0, "logprobs": True}, [None] * 4),
        ({"temperature": 0.0, "logit_bias": ((3, 1.0),)}, [None] * 4),
    ],
    ids=str,
)
def test_all_logits_are_made_only_where_they_are_needed(options, asked, look_ahead):
    """04 ORD-1, PEN-1, LGP-2: and the text is the one that all logits give."""
    sampling, target = SamplingOptions(**options), RankingToy()
    text = ask(loaded_toy(target, look_ahead=look_ahead), [1, 2, 3], 4, sampling=sampling)
    whole = ask(loaded_toy(ToyTarget(endless, peak=2.0)), [1, 2, 3], 4, sampling=sampling)
    assert text.error is None
    assert text.tokens == whole.tokens
    assert target.asked == asked
