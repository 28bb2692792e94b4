"""One round over the target: verify a proposal and keep what stands of it (spec 03 RND)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.decoder import TokenLogprob
from forerun.contract.drafter import Proposal
from forerun.contract.model import Best, Caches, Forward, RankedLogits, TargetModel
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.refusals import damaged, refuse_damaged
from forerun.sampling.sampler import Sampler
from forerun.speculation.accept import Keys, verify
from forerun.speculation.host_accept import HostRows, Noise, served, verify_on_host
from forerun.speculation.rollback import Rollback


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a round's D drafts."""

    tokens: tuple[int, ...]  # to hand out
    kept: int  # drafts that stand in the caches now, behind the token that was current
    accepted: int  # of the first `observed` drafts
    observed: int
    current: int | None  # the token that the next forward writes; None: no token may follow


@dataclass(frozen=True, slots=True)
class Verified:
    """A round that has been committed. `forward` is valid until the next one."""

    outcome: Outcome
    forward: Forward
    logprobs: tuple[TokenLogprob, ...]  # one a token, if the slot asked


@dataclass(frozen=True, slots=True)
class _Judged:
    accepted: int  # the drafts that stand
    continuation: int  # the token that follows them
    largest: Sequence[float]  # logit of each row that was looked at; none where that is not known
    logits: Tensor | None  # all of them, where they were needed


class Rounds:
    """Runs rounds of one slot, one after the other."""

    def __init__(
        self,
        model: TargetModel,
        caches: Caches,
        sampler: Sampler,
        *,
        slot: int,
        eos: frozenset[int],
    ) -> None:
        self._model, self._caches, self._sampler = model, caches, sampler
        self._slot, self._eos = slot, eos
        self._options = sampler.options(slot)
        self._ranked = model if isinstance(model, RankedLogits) else None
        self._rollback = Rollback(caches)

    def run(self, current: int, before: int, proposal: Proposal) -> Verified:
        """Verify `proposal` behind `current`, which is written at position `before`.

        Afterwards caches and sampler hold what the outcome says, and nothing of what was refused.
        """
        drafts = proposal.tokens
        # on its way before the forward is built, and there once the verdict is (RND-5)
        copied = drafts.to("cpu", non_blocking=True)
        self._rollback.begin(before, drafts.shape[0])
        try:
            forward = self._forward(current, before, proposal)
            judged = self._judged(forward.hidden[0], before, proposal)
            drafted = copied.tolist()
            verdict = sound(drafted, judged.accepted, judged.continuation, judged.largest)
            outcome = settled(drafted, *verdict, self._eos)
            logprobs = self._logprobs(judged.logits, outcome.tokens)
            self._rollback.commit(outcome.kept)
        except BaseException:
            self._rollback.abandon()  # RND-10
            raise
        self._sampler.commit(self._slot, outcome.tokens)
        return Verified(outcome, forward, logprobs)

    def _forward(self, current: int, before: int, proposal: Proposal) -> Forward:
        drafts, device = proposal.tokens, self._model.facts.device
        tokens: Tensor | tuple[int, ...]
        if proposal.host_tokens is not None and device.type == "cpu":
            tokens = (current, *proposal.host_tokens)
        else:
            tokens = torch.cat((drafts.new_full((1,), current), drafts))
        return self._model.forward(Batch.of(tokens, before, device), self._caches)

    def _judged(self, hidden: Tensor, before: int, proposal: Proposal) -> _Judged:
        sampler, slot, drafts = self._sampler, self._slot, proposal.tokens
        best, logits = self._best(hidden, drafts.shape[0]), None
        if best is not None:
            if served(proposal):
                rows = HostRows.of(sampler, slot, best, proposal)
                accepted, token = verify_on_host(rows, proposal, self._noise(before))
                return _Judged(accepted, token, rows.largest(accepted + 1), None)
            target = sampler.distribution_best(slot, best, drafts)
            scores = best.values.masked_fill(best.ids < 0, torch.nan)
        else:
            logits = scores = self._model.unembed(hidden)
            target = sampler.distribution(slot, logits, drafts)
        keys = Keys.of(sampler, slot, before, drafts.shape[0])
        verdict = verify(target, proposal.rows, drafts, keys, seeded=self._options.seeded)
        read = torch.cat((verdict.continuations, verdict.accepted[None])).tolist()
        accepted = read.pop()
        on_host = scores.device.type == "cpu"  # elsewhere the host would wait once more
        largest = scores[: accepted + 1].amax(-1).tolist() if on_host else []
        return _Judged(accepted, read[accepted], largest, logits)

    def _noise(self, before: int) -> Noise:
        sampler, slot, first = self._sampler, self._slot, before + 1
        return lambda place, purpose: sampler.key(slot, first + place, purpose)

    def _best(self, hidden: Tensor, drafts: int) -> Best | None:
        """No more logits than decide each row, where the model tells them alone."""
        count = None if self._ranked is None else self._sampler.deciding(self._slot, drafts)
        return None if self._ranked is None or count is None else self._ranked.best(hidden, count)

    def _logprobs(self, logits: Tensor | None, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """RND-17: of each token from the row that it was judged or drawn by."""
        if logits is None or not self._options.logprobs or not tokens:
            return ()
        chosen = torch.tensor(tokens, dtype=torch.int64).to(logits.device, non_blocking=True)
        found = self._sampler.logprobs(self._slot, logits[: len(tokens)], chosen)
        assert found is not None, "the slot asked for log-probabilities"
        return found.entries(tokens, self._options.top_logprobs)


def sound(
    drafts: Sequence[int], accepted: int, continuation: int, largest: Sequence[float]
) -> tuple[int, int]:
    """(accepted, continuation) of the rows before the first that comes from no sound model.

    The token that leads to that row is handed out, and the next forward comes upon it again: the
    text before it is whole, as in plain decoding. Raises DamagedModelError for the first row.
    """
    place = next((place for place, score in enumerate(largest) if damaged(score)), None)
    if place is None:
        return accepted, continuation
    if not place:
        refuse_damaged(largest[place])
    return place - 1, drafts[place - 1]


def settled(
    drafts: Sequence[int], accepted: int, continuation: int, eos: frozenset[int]
) -> Outcome:
    """What a round with this verdict comes to.

    An accepted stop token ends it: nothing follows, and the stop token's own state stays out of the
    caches, since a recurrent one could not drop it and the next prompt does not contain it (RND-8).
    """
    taken = tuple(drafts[:accepted])
    end = next((place for place, token in enumerate(taken) if token in eos), None)
    if end is not None:
        return Outcome(taken[: end + 1], end, end + 1, end + 1, taken[end])
    if continuation == NO_TOKEN:
        return Outcome(taken, accepted, accepted, accepted, None)
    return Outcome((*taken, continuation), accepted, accepted, len(drafts), continuation)
