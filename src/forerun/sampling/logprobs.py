"""Log-probabilities of what was emitted, and of what might have been (LGP)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.decoder import TokenLogprob
from forerun.sampling.distribution import check_ids


@dataclass(frozen=True, slots=True)
class Logprobs:
    """One row a token, on the device. Whoever shows them sorts, and cuts to its own count."""

    token: Tensor  # [rows] fp32
    top_ids: Tensor  # [rows, count] int64, in no order
    top_values: Tensor  # [rows, count] fp32

    @classmethod
    def cat(cls, parts: list["Logprobs"]) -> "Logprobs":
        return cls(
            torch.cat([part.token for part in parts]),
            torch.cat([part.top_ids for part in parts]),
            torch.cat([part.top_values for part in parts]),
        )

    def to(self, device: torch.device) -> "Logprobs":
        """On its way there: a copy to the host is complete once the device has been waited for."""
        return Logprobs(
            self.token.to(device, non_blocking=True),
            self.top_ids.to(device, non_blocking=True),
            self.top_values.to(device, non_blocking=True),
        )

    def entries(self, tokens: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
        """One for each of `tokens`, its row's `count` likeliest sorted. Waits for the device."""
        rows = (self.token.tolist(), self.top_ids.tolist(), self.top_values.tolist())
        entries = []
        for token, own, ids, values in zip(tokens, *rows, strict=True):
            pairs = zip(ids, values, strict=True)
            likeliest = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
            entries.append(TokenLogprob(token, own, tuple(likeliest[:count])))
        return tuple(entries)


def token_logprobs(scores: Tensor, tokens: Tensor, count: int) -> Logprobs:
    """Of `tokens` [rows] and the `count` likeliest, over the whole vocabulary.

    scores   [rows, vocabulary] fp32 after grammar mask and bias, before everything else (LGP-1)
    """
    check_ids(tokens)
    values = scores.log_softmax(-1)
    top = values.topk(min(count, values.shape[-1]), sorted=False)
    return Logprobs(values.gather(-1, tokens[:, None]).squeeze(-1), top.indices, top.values)
