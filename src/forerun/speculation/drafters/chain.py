"""Drafts token by token with a head that is fed the target's hidden states (spec 03 MTP).

State at position S is made of the target's conditioning at S and of token S + 1: a *pair*. The pair
of the last reported token is open until the token after it is known. A head with caches of its own
writes every pair; one without attends over the target's caches, from the last position alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contract.batch import Batch
from forerun.contract.drafter import DraftRequest, DraftSession, Proposal
from forerun.contract.media import Layout, MediaItem
from forerun.contract.model import Best, Caches, DraftModel, Forward, RankedLogits
from forerun.sampling.distribution import Distribution
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.noise import Purpose
from forerun.sampling.sampler import Sampler

FLUSH_AT = 256  # pairs that wait for a forward: there the fast kernels are reached (MTP-5)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What the next draft is drawn from, and the draft after it is fed: one row each."""

    hidden: Tensor  # [1, H]
    conditioning: Tensor  # [1, step_size]

    @classmethod
    def last(cls, forward: Forward) -> "_Outputs":
        """Views, good until the next forward."""
        hidden = forward.hidden[0, -1:]
        if forward.conditioning is forward.hidden:
            return cls(hidden, hidden)
        return cls(hidden, forward.conditioning[0, -1:])

    def held(self) -> "_Outputs":
        """Copies, which outlive their forward (DRF-7)."""
        return _Outputs(self.hidden.clone(), self.conditioning.clone())


class ChainDrafter:
    """Bound to a target whose caches its head may read, and owner of the head's own."""

    def __init__(
        self,
        draft: DraftModel,
        target_caches: Caches,
        caches: Caches,
        sampler: Sampler,
        *,
        flush_at: int = FLUSH_AT,
    ) -> None:
        """caches: of the head, as it makes them; without any it drafts from one position"""
        self._own = [cache for cache in caches if cache is not None]
        self._draft, self._target_caches = draft, target_caches
        self.caches: Caches = caches if self._own else ()
        self._sampler, self._column_ids = sampler, draft.column_ids
        self._best_ids: Tensor | None = None  # the same, and what no number's place stands for
        if draft.column_ids is not None:
            self._best_ids = functional.pad(draft.column_ids, (0, 1), value=NO_TOKEN)
        self._ranked = draft if isinstance(draft, RankedLogits) else None
        self._device = draft.facts.device
        self._certain = torch.ones(1, 1)
        self.flush_at = flush_at

    @property
    def name(self) -> str:
        return "model"

    @property
    def look_ahead(self) -> int:
        return 1 if self._own else 0

    @property
    def draft_limit(self) -> int:
        return 0

    @property
    def grades(self) -> int:
        return 1

    @property
    def needs_rows(self) -> bool:
        return True

    @property
    def on_host(self) -> bool:
        """Whether reading a token waits for nothing."""
        return self._device.type == "cpu"

    def open(self, request: DraftRequest) -> DraftSession:
        return _CachedSession(self, request) if self._own else _SinglePositionSession(self, request)

    @property
    def offset(self) -> int:
        """Pairs in its caches, those of drafts included."""
        (offset,) = {cache.offset for cache in self._own}
        return offset

    def rewind(self, pairs: int) -> None:
        """Drop what a chain, or a forward that broke off, wrote after so many pairs."""
        for cache in self._own:
            if cache.offset != pairs:
                rewound = cache.restore(None, pairs)
                assert rewound, f"draft rows {pairs} to {cache.offset} cannot be dropped"

    def condition(self, taps: Tensor) -> Tensor:
        """[n, step_size] rows of its own for reported conditioning (EGL-3)."""
        rows = self._draft.condition(taps)
        return rows.clone() if rows.data_ptr() == taps.data_ptr() else rows

    def write(
        self, tokens: Sequence[int] | Tensor, rows: Tensor, position: int, layout: Layout | None
    ) -> Forward:
        """One forward of the head over pairs from `position` on."""
        batch = Batch.of(tokens, position, self._device, conditioning=rows[None], layout=layout)
        return self._draft.forward(batch, self._target_caches, self.caches)

    def chain(self, slot: int, position: int, most: int) -> "Chain":
        """`most` drafts, the first of which will stand at `position`."""
        return Chain(self._sampler, slot, range(position, position + most))

    def distribution(self, slot: int, hidden: Tensor, drafts: Tensor | None) -> Distribution:
        """What the draft after `drafts` is drawn from, sparse in target ids (MTP-8, EGL-8)."""
        columns = self._best_ids
        count = self._sampler.deciding(slot, 0 if drafts is None else drafts.shape[0])
        if count is not None and self._ranked is not None:
            best = self._ranked.best(hidden, count)
            if best is not None:
                ids = best.ids if columns is None else columns[best.ids]
                if count == 1:  # a point mass, whatever the logit
                    return Distribution(self._certain, ids)
                return self._sampler.distribution_best(slot, Best(best.values, ids), drafts)
        logits = self._draft.unembed(hidden)
        return self._sampler.distribution(slot, logits, drafts, ids=self._column_ids)


class Chain:
    """The drafts of one proposal, drawn one by one with the noise of their positions (04 SED)."""

    def __init__(self, sampler: Sampler, slot: int, positions: Sequence[int]) -> None:
        options, self._vocabulary = sampler.options(slot), sampler.vocab_size
        self._greedy, self._penalised = options.greedy, options.penalised
        purpose = Purpose.TARGET if options.seeded else Purpose.PROPOSAL
        self._keys = None if self._greedy else sampler.keys(slot, positions, purpose)
        self._tokens: list[Tensor] = []
        self._rows: list[Distribution] = []

    @property
    def history(self) -> Tensor | None:
        """The drafts so far, where penalties look at them. Each is shaped as it is verified."""
        return torch.cat(self._tokens) if self._penalised and self._tokens else None

    def draw(self, row: Distribution) -> Tensor | None:
        """[1] int64: the next draft, from a row of one distribution.

        None: the row holds no token, as where a head's numbers have overflowed. Where telling that
        would wait for the device any token stands for it, which such a row does not let pass.
        """
        if self._keys is None and row.ids is not None:  # a point mass (SED-5)
            token = row.ids[:, 0]
        else:
            place = len(self._tokens)
            keys = row.probs.new_zeros(1, dtype=torch.int64)
            token = row.draw(keys if self._keys is None else self._keys[place : place + 1])
        if token.device.type != "cpu":
            token = token.clamp(0, self._vocabulary - 1)
        elif not 0 <= int(token) < self._vocabulary:
            return None
        self._tokens.append(token)
        self._rows.append(row)
        return token

    def proposal(self, *, on_host: bool) -> Proposal | None:
        """All that was drawn."""
        if not self._tokens:
            return None
        tokens = torch.cat(self._tokens)
        known = tuple(tokens.tolist()) if on_host else None
        return Proposal(tokens, Distribution.cat(self._rows), known)


class _Session:
    """What both kinds of sessions know: where the text ends, and the target's last row (MTP-2)."""

    def __init__(self, drafter: ChainDrafter, request: DraftRequest) -> None:
        self._drafter, self._slot, self._layout = drafter, request.slot, request.layout
        self._frontier: int | None = None  # position after the last reported token
        self._row: Tensor | None = None  # [1, step_size]: conditioning at the pair frontier - 1

    def _reported(self, tokens: Sequence[int], conditioning: Tensor | None, position: int) -> None:
        assert conditioning is not None, "this drafter needs rows"
        assert len(conditioning) == len(tokens) > 0, (conditioning.shape, len(tokens))
        assert self._frontier in (None, position), (
            f"tokens reported from {position}, the last ones ended at {self._frontier}"
        )
        self._frontier = position + len(tokens)

    def grade(self, current: int) -> int | None:
        """It can always go on, once it has a row to start from."""
        del current
        return None if self._row is None else 0


class _SinglePositionSession(_Session):
    """Of a head without caches: token and hidden state advance, the position stays (MTP-7)."""

    def committed(
        self,
        tokens: Sequence[int],
        conditioning: Tensor | None,
        position: int,
        media: Sequence[MediaItem] = (),
    ) -> None:
        del media  # what they embed is in the target's rows
        self._reported(tokens, conditioning, position)
        assert conditioning is not None
        self._row = self._drafter.condition(conditioning[-1:])

    def settle(self, next_token: int) -> None:
        del next_token  # nothing waits to be written

    def propose(self, current: int, most: int) -> Proposal | None:
        drafter, row, frontier = self._drafter, self._row, self._frontier
        if most <= 0 or row is None or frontier is None:
            return None
        chain = drafter.chain(self._slot, frontier + 1, most)
        token: Sequence[int] | Tensor = [current]
        for _ in range(most):
            outputs = _Outputs.last(drafter.write(token, row, frontier - 1, self._layout))
            distribution = drafter.distribution(self._slot, outputs.hidden, chain.history)
            drawn = chain.draw(distribution)
            if drawn is None:
                break
            token, row = drawn, outputs.conditioning
        return chain.proposal(on_host=drafter.on_host)

    def close(self) -> None:
        self._row = None


class _CachedSession(_Session):
    """Of a head with caches: every pair is written, in runs, on its way to the next proposal."""

    def __init__(self, drafter: ChainDrafter, request: DraftRequest) -> None:
        super().__init__(drafter, request)
        self._written = drafter.offset  # a restored prefix arrives already written (DRF-6)
        self._frontier = self._written
        self._tokens: list[int] = []  # pairs that wait: their tokens,
        self._rows: list[Tensor] = []  # and their rows, in runs
        self._held: _Outputs | None = None  # of the last pair that a flush wrote

    def committed(
        self,
        tokens: Sequence[int],
        conditioning: Tensor | None,
        position: int,
        media: Sequence[MediaItem] = (),
    ) -> None:
        del media
        self._reported(tokens, conditioning, position)
        assert conditioning is not None
        rows, count = self._drafter.condition(conditioning), len(tokens)
        # the first token completes the open pair, unless `settle` did (MTP-3)
        first = self._paired - position + 1
        assert first >= 0, f"pairs end at {self._paired}, tokens are reported from {position}"
        if first == 0:
            assert self._row is not None, f"no row at {position - 1}, whose pair is open"
            self._queue(tokens[:1], self._row)
            first = 1
        if first < count:
            self._queue(tokens[first:], rows[first - 1 : -1])
        self._row = rows if count == 1 else rows[-1:].clone()
        if len(self._tokens) >= self._drafter.flush_at:
            self._flush()

    def settle(self, next_token: int) -> None:
        if self._row is not None and self._frontier == self._paired + 1:
            self._queue([next_token], self._row)
        self._flush()

    def propose(self, current: int, most: int) -> Proposal | None:
        if most <= 0 or self._row is None:
            return None
        self.settle(current)
        drafter, held = self._drafter, self._held
        assert held is not None, "a flush has written the pair of the current token"
        position = self._written
        chain = drafter.chain(self._slot, position + 1, most)
        outputs = held
        token = chain.draw(drafter.distribution(self._slot, held.hidden, None))
        for step in range(most - 1):
            if token is None:
                break
            forward = drafter.write(token, outputs.conditioning, position + step, self._layout)
            outputs = _Outputs.last(forward)
            distribution = drafter.distribution(self._slot, outputs.hidden, chain.history)
            token = chain.draw(distribution)
        return chain.proposal(on_host=drafter.on_host)

    def close(self) -> None:
        self._flush()
        self._row = self._held = None

    @property
    def _paired(self) -> int:
        return self._written + len(self._tokens)

    def _queue(self, tokens: Sequence[int], rows: Tensor) -> None:
        self._tokens.extend(tokens)
        self._rows.append(rows)

    def _flush(self) -> None:
        """Write all pairs that wait, over what a chain has written (MTP-6)."""
        self._drafter.rewind(self._written)
        if not self._tokens:
            return
        rows = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        forward = self._drafter.write(self._tokens, rows, self._written, self._layout)
        self._held = _Outputs.last(forward).held()
        self._written = self._paired
        self._tokens, self._rows = [], []
