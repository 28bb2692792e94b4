"""A probability distribution over tokens, one row a position (DST)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.sampling import host_row
from forerun.sampling.host_row import MOST_COLUMNS, NO_TOKEN
from forerun.sampling.noise import gumbel

NO_MASS = 1e-9  # a residual below this is rounding, not probability (03 RND-7)
_COMPARED_AT_ONCE = 1 << 16  # up to so many pairs, comparing all of them beats sorting


def row_sum(values: Tensor) -> Tensor:
    """[rows, n] fp32 to [rows, 1] fp32: a row's sum does not depend on the rows beside it.

    PyTorch splits one long row over threads, and several rows not, so fp32 partial sums differ in
    their last bits; accumulated in fp64 that is lost in the final rounding.
    """
    return values.sum(-1, keepdim=True, dtype=accumulator(values)).to(values.dtype)


def accumulator(values: Tensor) -> torch.dtype:
    """The widest float of the tensor's device: Metal has no fp64."""
    return torch.float32 if values.device.type == "mps" else torch.float64


@dataclass(frozen=True, slots=True)
class Distribution:
    """Rows of probabilities after every filter, so speculation and plain decoding agree on them.

    A sparse one keeps only the tokens that can be drawn, in any order. Target and draft need not
    have the same layout: a lookup draft is one token, a head may know part of the vocabulary.
    Nothing here waits for the device.
    """

    probs: Tensor  # [rows, columns] fp32; a row sums to 1, or to 0 where no token is allowed
    ids: Tensor | None = None  # [rows, columns] int64, the token of each column; None: column = id

    def __post_init__(self) -> None:
        assert self.probs.dtype == torch.float32, f"probabilities are {self.probs.dtype}"
        if self.ids is not None:
            check_ids(self.ids)
            assert self.ids.shape == self.probs.shape, f"{self.ids.shape} ids"

    @classmethod
    def cat(cls, parts: Sequence["Distribution"]) -> "Distribution":
        """The rows of one drafter or one target; they share a layout (DST-7)."""
        ids = [part.ids for part in parts if part.ids is not None]
        assert len(ids) in (0, len(parts)), f"{len(ids)} of {len(parts)} parts are sparse"
        return cls(torch.cat([part.probs for part in parts]), torch.cat(ids) if ids else None)

    def __len__(self) -> int:
        return self.probs.shape[0]

    def rows(self, which: slice) -> "Distribution":
        return Distribution(self.probs[which], None if self.ids is None else self.ids[which])

    def to(self, device: torch.device) -> "Distribution":
        ids = None if self.ids is None else self.ids.to(device, non_blocking=True)
        return Distribution(self.probs.to(device, non_blocking=True), ids)

    def prob(self, tokens: Tensor) -> Tensor:
        """Probability of one token a row, 0 where it is not kept; [rows] int64 to [rows]."""
        return self.probs_for_ids(tokens[:, None]).squeeze(-1)

    def probs_for_ids(self, ids: Tensor) -> Tensor:
        """The same for several tokens a row; [rows, n] int64 to [rows, n]. NO_TOKEN has none."""
        check_ids(ids)
        if self.ids is None:
            return self.probs.gather(-1, ids.clamp_min(0)) * (ids != NO_TOKEN)
        if ids.shape[-1] * self.ids.shape[-1] > _COMPARED_AT_ONCE:
            return self._probs_by_search(ids, self.ids)
        found = ids[:, :, None] == self.ids[:, None, :]
        return (found * self.probs[:, None, :]).sum(-1)

    def _probs_by_search(self, wanted: Tensor, ids: Tensor) -> Tensor:
        """`probs_for_ids` in memory that grows with the sum of both widths, not the product."""
        ordered, order = ids.sort(-1)
        first = torch.searchsorted(ordered, ordered)  # equal ids add up in the first one's place
        summed = torch.zeros_like(self.probs)
        summed.scatter_add_(-1, first, self.probs.gather(-1, order))
        place = torch.searchsorted(ordered, wanted.contiguous()).clamp_max(ids.shape[-1] - 1)
        return summed.gather(-1, place) * (ordered.gather(-1, place) == wanted)

    def dense(self, vocab: int) -> Tensor:
        """Probabilities by token, [rows, vocab]."""
        if self.ids is None:
            assert self.probs.shape[-1] == vocab, f"{self.probs.shape[-1]} columns, not {vocab}"
            return self.probs
        return self.probs.new_zeros(len(self), vocab).scatter_add(-1, self.ids, self.probs)

    def log_probs(self, vocab: int) -> Tensor:
        """Log-probabilities by token, [rows, vocab] fp32, -inf where nothing can be drawn."""
        return self.dense(vocab).log()

    def residual(self, draft: "Distribution") -> "Distribution":
        """What remains of this distribution once a rejected `draft` token has been ruled out.

        Proportional to max(self - draft, 0), in the layout of self. Leviathan et al. 2023, appendix
        A.1, https://arxiv.org/abs/2211.17192. A row equal to its draft leaves nothing over, and
        rounding may refuse it all the same; such a row comes back as the target itself.
        """
        if self.ids is None:
            ruled_out = draft.dense(self.probs.shape[-1])
        else:
            ruled_out = draft.probs_for_ids(self.ids)
        left = (self.probs - ruled_out).clamp_min(0)
        total = row_sum(left)
        probs = torch.where(total > NO_MASS, left / total.clamp_min(NO_MASS), self.probs)
        return Distribution(probs, self.ids)

    def draw(self, keys: Tensor) -> Tensor:
        """One token a row, [rows] int64, NO_TOKEN where a row has no probability.

        keys   [rows] int64, each row's noise (`Sampler.keys`). Equal keys draw equal tokens from
               equal rows, which is how a seeded draft meets its target.

        The argmax of log-probability plus Gumbel noise; equal ones go to the smaller id.
        `torch.multinomial` raises on a row without mass, on CUDA for good (ORD-6).
        """
        if self.ids is not None and self.probs.shape[-1] <= MOST_COLUMNS and _on_host(self.probs):
            rows = zip(self.probs.tolist(), self.ids.tolist(), keys.tolist(), strict=True)
            return torch.tensor([host_row.draw(*row) for row in rows], dtype=torch.int64)
        probs, ids = (self.probs, self.ids) if self.ids is not None else self._as_columns()
        if probs.shape[-1] == 0:
            return keys.new_full((len(self),), NO_TOKEN)
        if probs.shape[-1] == 1:  # a point mass needs no noise (SED-5)
            return torch.where(probs > 0, ids, NO_TOKEN).squeeze(-1)
        return first_best(probs.log() + gumbel(keys, ids), ids)  # finite noise keeps -inf as it is

    def _as_columns(self) -> tuple[Tensor, Tensor]:
        """Probabilities and ids to draw from; noise costs much more than finding what needs it."""
        if not _on_host(self.probs):  # elsewhere the count of columns is not known in time
            columns = torch.arange(self.probs.shape[-1], device=self.probs.device)
            return self.probs, columns.expand_as(self.probs)
        columns = (self.probs > 0).any(0).nonzero().squeeze(-1)
        probs = self.probs[:, columns]
        return probs, columns.expand_as(probs)


def _on_host(values: Tensor) -> bool:
    return values.device.type == "cpu"


def first_best(score: Tensor, ids: Tensor | None) -> Tensor:
    """The id of each row's highest score, of equal ones the smallest; NO_TOKEN where all are -inf.

    score   [rows, columns] without NaN
    ids     [rows, columns] or [columns] int64; None: column = id

    Result [rows] int64.
    """
    if ids is None:
        token = score.argmax(-1)  # of equal scores the first column, on CPU and on CUDA
        best = score.gather(-1, token[:, None])
    else:
        best = score.amax(-1, keepdim=True)
        last = torch.iinfo(torch.int64).max
        token = torch.where(score == best, ids, last).amin(-1)
    return torch.where(best.squeeze(-1) == -torch.inf, NO_TOKEN, token)


def check_ids(ids: Tensor) -> None:
    """Token ids on the device are int64 and nothing else (F2)."""
    assert ids.dtype == torch.int64, f"token ids are {ids.dtype}, not int64"
