"""Drafts with an ordinary model of the target's vocabulary, smaller than the target (spec 03 DRM).

It reads the text as the target does, with caches of its own, of whatever kinds its layers need, and
none of the target's states. Between rounds its caches hold what the target's do, less what waits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.drafter import DraftRequest, DraftSession, Proposal
from forerun.contract.media import MediaItem
from forerun.contract.model import Best, Caches, RankedLogits, TargetModel
from forerun.sampling.distribution import Distribution
from forerun.sampling.sampler import Sampler
from forerun.speculation.drafters.chain import FLUSH_AT, Chain
from forerun.speculation.rollback import Rollback


class DraftModelDrafter:
    """Bound to a model that knows nothing of being a draft, and owner of its caches."""

    name = "model"
    look_ahead = 0
    draft_limit = 0
    grades = 1
    needs_rows = False

    def __init__(
        self,
        model: TargetModel,
        caches: Caches,
        sampler: Sampler,
        *,
        chunk: int,
        tokens: int | None = None,
    ) -> None:
        """
        chunk   tokens of one forward at most
        tokens  ids that the vocabulary has (`vocabulary.checked`), the rest of the model's output
                being padding; None: no padding
        """
        self.caches = caches
        self.chunk = chunk
        self.longest = model.facts.max_context
        self.on_host = model.facts.device.type == "cpu"
        self._own = [cache for cache in caches if cache is not None]
        self._model, self._sampler, self._device = model, sampler, model.facts.device
        self._ranked = model if isinstance(model, RankedLogits) else None
        self._columns = model.facts.vocab_size if tokens is None else tokens
        assert self._columns <= min(model.facts.vocab_size, sampler.vocab_size), self._columns
        self._ids: Tensor | None = None  # what the columns stand for, where the target has others
        if self._columns != sampler.vocab_size:
            self._ids = torch.arange(self._columns, device=self._device)

    def open(self, request: DraftRequest) -> DraftSession:
        return DraftModelSession(self, request)

    @property
    def offsets(self) -> set[int]:
        """Tokens in its caches: one number, unless a forward broke off."""
        return {cache.offset for cache in self._own}

    def forget(self) -> None:
        for cache in self._own:
            cache.free()

    def write(self, tokens: Sequence[int] | Tensor, position: int) -> Tensor:
        """One forward of tokens from `position` on; the last row's hidden state, [1, H]."""
        batch = Batch.of(tokens, position, self._device)
        return self._model.forward(batch, self.caches).hidden[0, -1:]

    def chain(self, slot: int, position: int, most: int) -> Chain:
        """`most` drafts, the first of which will stand at `position`."""
        return Chain(self._sampler, slot, range(position, position + most))

    def distribution(self, slot: int, hidden: Tensor, drafts: Tensor | None) -> Distribution:
        """What the draft after `drafts` is drawn from; padding has no part in it (DRM-2)."""
        best = self._best(slot, hidden, 0 if drafts is None else drafts.shape[0])
        if best is not None:
            return self._sampler.distribution_best(slot, best, drafts)
        logits = self._model.unembed(hidden)[:, : self._columns]
        return self._sampler.distribution(slot, logits, drafts, ids=self._ids)

    def _best(self, slot: int, hidden: Tensor, drafts: int) -> Best | None:
        """The logits that decide, where the model tells them alone."""
        count = self._sampler.deciding(slot, drafts)
        if self._ranked is None or count is None or count > self._columns:
            return None
        best = self._ranked.best(hidden, count)
        padded = self._columns < self._model.facts.vocab_size
        if best is not None and padded and int(best.ids.max()) >= self._columns:
            return None
        return best


class DraftModelSession:
    """One request's text, on its way into the draft's caches.

    `_written` tokens stand there for good, `_waiting` follow, and then, between a proposal and
    what becomes of it, the chain: the current token and all drafts but the last, which nobody
    needed to forward. Of a chain the caches can return to every length, none included.
    """

    def __init__(self, drafter: DraftModelDrafter, request: DraftRequest) -> None:
        self._drafter, self._slot = drafter, request.slot
        self._prefilled = len(request.prompt) - 1  # position of the first current token
        (self._written,) = drafter.offsets  # a restored prefix arrives already written (DRF-6)
        self._waiting: list[int] = []
        self._chain = 0  # tokens of the chain in the caches
        self._known: tuple[int, ...] = ()  # which they are, where the host knows
        self._rollback = Rollback(drafter.caches)

    def committed(
        self,
        tokens: Sequence[int],
        conditioning: Tensor | None,
        position: int,
        media: Sequence[MediaItem] = (),
    ) -> None:
        del conditioning, media
        assert position == self._frontier, (
            f"tokens reported from {position}, the last ones ended at {self._frontier}"
        )
        kept = min(self._chain, len(tokens))  # behind the current token a round keeps drafts only
        known = self._known[:kept]
        assert known == tuple(tokens[: len(known)]), f"{known} drafted, {list(tokens)} reported"
        self._end_chain(kept)
        self._waiting.extend(tokens[kept:])
        prefilling = self._frontier <= self._prefilled
        if len(self._waiting) >= (self._drafter.chunk if prefilling else FLUSH_AT):
            self._flush()

    def settle(self, next_token: int) -> None:
        del next_token  # a token's state does not depend on the one after it
        self._flush()

    def grade(self, current: int) -> int | None:
        """It knows how to go on up to the end of its own context."""
        del current
        return 0 if self._frontier < self._drafter.longest else None

    def propose(self, current: int, most: int) -> Proposal | None:
        self._end_chain(0)
        position, drafter = self._frontier, self._drafter
        most = min(most, drafter.longest - position)
        if most <= 0:
            return None
        if len(self._waiting) >= drafter.chunk:
            self._flush()
        chain = drafter.chain(self._slot, position + 1, most)
        return self._proposed(chain, current, most)

    def close(self) -> None:
        self._flush()

    @property
    def _frontier(self) -> int:
        """Position after the last reported token."""
        return self._written + len(self._waiting)

    def _proposed(self, chain: Chain, current: int, most: int) -> Proposal | None:
        """Draft `most` tokens, and leave the chain in the caches."""
        drafter, slot, position = self._drafter, self._slot, self._frontier
        self._assert_level()
        # whatever is kept, also nothing, there is a way back to it (DRM-4)
        self._rollback.begin(position - 1, most)
        self._chain = most
        begin, tokens = self._written, [*self._waiting, current]
        self._written, self._waiting = position, []
        hidden = drafter.write(tokens, begin)
        token, written = chain.draw(drafter.distribution(slot, hidden, None)), 1
        while token is not None and written < most:
            hidden = drafter.write(token, position + written)
            token = chain.draw(drafter.distribution(slot, hidden, chain.history))
            written += 1
        proposal = chain.proposal(on_host=drafter.on_host)
        known = None if proposal is None else proposal.host_tokens
        self._chain, self._known = written, () if known is None else (current, *known)[:written]
        return proposal

    def _end_chain(self, kept: int) -> None:
        """Keep the first tokens of the chain, if there is one (DRM-5)."""
        chain, self._chain, self._known = self._chain, 0, ()
        if not chain:
            return
        if kept or self._written:
            self._rollback.commit(kept)
        else:  # no capture stands for no token
            self._drafter.forget()
            self._rollback = Rollback(self._drafter.caches)
        self._written += kept

    def _flush(self) -> None:
        """Write all that waits (DRM-3)."""
        self._end_chain(0)
        if not self._waiting:
            return
        self._assert_level()
        waiting, self._waiting = self._waiting, []
        for begin in range(0, len(waiting), self._drafter.chunk):
            piece = waiting[begin : begin + self._drafter.chunk]
            self._written += len(piece)
            self._drafter.write(piece, self._written - len(piece))

    def _assert_level(self) -> None:
        offsets = self._drafter.offsets
        assert offsets == {self._written}, f"a draft's caches at {offsets}, not {self._written}"
