"""The slots of a loaded model: what each may draw, and what it has drawn (SLT, BAT)."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.model import Best
from forerun.sampling import host_row
from forerun.sampling.distribution import Distribution, check_ids, first_best
from forerun.sampling.filters import filtered
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.logprobs import Logprobs, token_logprobs
from forerun.sampling.noise import Purpose, draw_key, seed_key
from forerun.sampling.options import SamplingOptions
from forerun.sampling.penalties import penalise
from forerun.sampling.penalty_history import PenaltyHistory, Window, to_device
from forerun.sampling.refusals import largest, refuse_empty
from forerun.sampling.token_mask import unpack_mask

_LONGEST_COUNTED = 256  # places of a window; looking at more of them costs what it would save


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token a row, and its log-probabilities if any registered slot asked (LGP-2)."""

    tokens: Tensor  # [rows] int64, on the device
    logprobs: Logprobs | None


@dataclass(frozen=True, slots=True)
class _Bias:
    ids: Tensor  # [entries] int64
    values: Tensor  # [entries] fp32


@dataclass(frozen=True, slots=True)
class _Slot:
    options: SamplingOptions
    recipe: SamplingOptions
    key: int
    bias: _Bias | None
    decisive: int | None  # scores after penalties that decide a draw; None: all


class Sampler:
    """Draws tokens for registered slots; touches no random state and, but for ids, no host.

    Logits may have any float dtype and are left as they are. `allowed` is a grammar's mask as
    packed words (`token_mask`), one row each row of logits or one for all, on host or device.
    """

    def __init__(self, *, vocab_size: int, context_length: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.device = device
        self.free()

    def free(self) -> None:
        """Forget every slot."""
        self._slots: dict[int, _Slot] = {}
        self._history = PenaltyHistory(self.vocab_size, self.device)
        self._top_logprobs: int | None = None

    def add(self, slot: int, options: SamplingOptions, prior: Sequence[int]) -> None:
        """Register a sequence once it is prefilled; `prior` is the whole prompt.

        An unseeded slot gets a seed of its own from the operating system (SED-3).
        """
        assert slot not in self._slots, f"slot {slot} is registered already"
        options = options.normalised(vocab_size=self.vocab_size, context_length=self.context_length)
        seed = options.seed if options.seeded else secrets.randbits(64)
        bias = self._bias(options) if options.logit_bias else None
        self._history.add(options.repeat_last_n, prior)
        decisive = host_row.deciding(options) if self.device.type == "cpu" else None
        self._slots[slot] = _Slot(options, options.recipe(), seed_key(seed), bias, decisive)
        self._count_logprobs()

    def remove(self, slot: int) -> None:
        """Forget a sequence; an unknown one is no error."""
        if slot in self._slots:
            self._history.remove(self._row(slot))
            del self._slots[slot]
            self._count_logprobs()

    def options(self, slot: int) -> SamplingOptions:
        """The slot's options, normalised."""
        return self._slot(slot).options

    def keys(self, slot: int, positions: Sequence[int], purpose: Purpose) -> Tensor:
        """The noise of draws at `positions`, [positions] int64 (SED-1)."""
        key = self._slot(slot).key
        return to_device([draw_key(key, at, purpose) for at in positions], self.device)

    def key(self, slot: int, position: int, purpose: Purpose) -> int:
        """The noise of one draw, on the host."""
        return draw_key(self._slot(slot).key, position, purpose)

    def sample(
        self,
        slots: Sequence[int],
        logits: Tensor,
        positions: Sequence[int],
        allowed: Tensor | None = None,
    ) -> Sampled:
        """The next token of each slot, written to its history.

        logits      [rows, vocabulary], row i for slots[i]: any slots, in any order
        positions   where the drawn tokens will stand

        Raises NoAllowedTokenError before anything changes: remove that slot and sample the others.
        On an accelerator only rows with a mask are looked at for it, since nothing else of ours can
        empty a row and looking makes the host wait.
        """
        members = self._members(slots, positions, logits.shape[0])
        if not members:
            return Sampled(torch.empty(0, dtype=torch.int64, device=self.device), None)
        allowed = self._mask(allowed, logits)
        fused = all(member.recipe == members[0].recipe for member in members)
        width = len(members) if fused else 1
        parts = []
        for begin in range(0, len(members), width):
            rows = slice(begin, begin + width)
            mask = None if allowed is None else allowed[rows]
            parts.append(self._draw(slots[rows], logits[rows], positions[rows], mask))
        result = parts[0] if fused else _joined(parts)
        self._record(slots, result.tokens)
        return result

    def deciding(self, slot: int, drafts: int = 0) -> int | None:
        """How many of the largest logits decide the slot's next draw; None: all may.

        drafts   tokens that the row may see behind the history (`distribution_best`)

        One where the draw is greedy, else as many as top-k keeps, and one more for each different
        token in the window of penalties that can only lower a score. Proof: of the k + d largest
        logits at least k are of tokens outside a window of d. Their scores stay. Any logit beyond
        comes behind these k (by value, then by id), and its score is no larger than it was; so it
        stays behind them, and is not among the k best scores.
        """
        member = self._slot(slot)
        if member.decisive is None or self._top_logprobs is not None:
            return None
        count, capacity = member.decisive, member.options.repeat_last_n
        if capacity:
            row = self._row(slot)
            if self._history.length(row) > _LONGEST_COUNTED:
                return None
            count += drafts + len(self._history.counts(row))
        return count if count < self.vocab_size else None

    def sample_best(self, slots: Sequence[int], best: Best, positions: Sequence[int]) -> Sampled:
        """`sample`, bit for bit, from the largest logits of each row; nothing is masked.

        best   `deciding` of each slot, or more of them
        """
        ids = best.ids.tolist()
        self._members(slots, positions, len(ids))
        rows = zip(slots, positions, best.values.tolist(), ids, strict=True)
        drawn = [self._drawn_from_best(*row) for row in rows]
        if len(drawn) == 1:  # half of the time that `torch.tensor` takes
            tokens = best.ids.new_full((1,), drawn[0])
        else:
            tokens = torch.tensor(drawn, dtype=torch.int64)
        self._record(slots, tokens)
        return Sampled(tokens, None)

    def distribution_best(
        self, slot: int, best: Best, drafts: Tensor | None = None
    ) -> Distribution:
        """`distribution`, bit for bit, from the largest logits of each row.

        best   `deciding` of the slot for so many drafts, or more of them
        """
        rows, options = best.ids.shape[0], self._slot(slot).options
        chain = [] if drafts is None else drafts.tolist()
        counts = self.windows(slot, chain, rows, best.ids.shape[1])
        found = zip(best.values.tolist(), best.ids.tolist(), counts, strict=True)
        made = [host_row.probabilities(*row, options) for row in found]
        probs = torch.tensor([probs for probs, _ in made], dtype=torch.float32)
        return Distribution(probs, torch.tensor([ids for _, ids in made], dtype=torch.int64))

    def windows(
        self, slot: int, drafts: Sequence[int], rows: int, held: int
    ) -> Sequence[Mapping[int, int]]:
        """How often each token occurs in what penalties look back on, row by row (DST-2).

        drafts   a chain that the last row has seen all of, or none: then no row has
        held     largest logits of each row at hand, which `deciding` tells
        """
        assert not drafts or rows <= len(drafts) + 1, f"{rows} rows see {len(drafts)} drafts"
        counts: list[Counter[int]] = [Counter()] * rows
        if self._slot(slot).options.penalised:
            if drafts:
                counts = self._history.counts_along(self._row(slot), drafts, rows)
            else:
                counts = [self._history.counts(self._row(slot))] * rows
        self._check_enough(slot, held, max(map(len, counts), default=0))
        return counts

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Write tokens that were chosen elsewhere (accepted drafts and the one after them)."""
        self._slot(slot)
        self._history.extend(self._row(slot), tokens)

    def distribution(
        self,
        slot: int,
        logits: Tensor,
        drafts: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        allowed: Tensor | None = None,
    ) -> Distribution:
        """What the slot may draw from each row of logits; changes nothing.

        logits   [rows, columns] or [1, rows, columns]
        drafts   [depth] int64, a chain the last row has seen all of, the row before it all but one,
                 and so on (DST-2). None: every row sees the history as it is
        ids      [columns] int64, the tokens the columns stand for, each once; None: column = id

        A row that allows no token has probability 0 everywhere and draws NO_TOKEN.
        """
        logits = logits.squeeze(0) if logits.dim() == 3 else logits
        member, rows = self._slot(slot), logits.shape[0]
        for given in (drafts, ids):
            if given is not None:
                check_ids(given)
        depth = 0 if drafts is None else drafts.shape[0]
        assert drafts is None or rows <= depth + 1, f"{rows} rows see a chain of {depth} drafts"
        scores = self._scores(member, logits, self._mask(allowed, logits, ids), ids)
        window = self._chain(slot, drafts, rows)
        return filtered(self._penalised(member, scores, window, ids), member.options, ids)

    def logprobs(
        self, slot: int, logits: Tensor, tokens: Tensor, allowed: Tensor | None = None
    ) -> Logprobs | None:
        """Those of emitted `tokens` [rows], from the rows that verified them (LGP-6).

        None, and nothing computed, when no registered slot asked.
        """
        if self._top_logprobs is None:
            return None
        scores = self._scores(self._slot(slot), logits, self._mask(allowed, logits), None)
        return token_logprobs(scores, tokens, self._top_logprobs)

    def _record(self, slots: Sequence[int], tokens: Tensor) -> None:
        if self._history.pool is not None:
            self._history.append([self._row(slot) for slot in slots], tokens)

    def _members(self, slots: Sequence[int], positions: Sequence[int], rows: int) -> list[_Slot]:
        members = [self._slot(slot) for slot in slots]
        assert len(members) == len(positions) == rows, (
            f"{len(slots)} slots, {len(positions)} positions, {rows} rows of logits"
        )
        assert len(set(slots)) == len(slots), f"a slot stands twice in {list(slots)}"
        return members

    def _draw(
        self,
        slots: Sequence[int],
        logits: Tensor,
        positions: Sequence[int],
        allowed: Tensor | None,
    ) -> Sampled:
        """Rows whose slots share a recipe, in one pass."""
        members = [self._slots[slot] for slot in slots]
        first = members[0]
        scores = self._scores(first, logits, allowed, None)
        if allowed is not None or self.device.type == "cpu":
            refuse_empty(slots, scores.amax(-1).tolist())
        window = None
        if first.options.penalised:
            window = self._history.window([self._row(slot) for slot in slots])
        penalised = self._penalised(first, scores, window, None)
        if first.options.greedy:
            tokens = first_best(penalised, None)
        else:
            keys = [
                draw_key(member.key, at, Purpose.TARGET)
                for member, at in zip(members, positions, strict=True)
            ]
            tokens = filtered(penalised, first.options).draw(to_device(keys, self.device))
        if self._top_logprobs is None:
            return Sampled(tokens, None)
        return Sampled(tokens, token_logprobs(scores, tokens, self._top_logprobs))

    def _drawn_from_best(
        self, slot: int, position: int, scores: list[float], ids: list[int]
    ) -> int:
        member = self._slots[slot]
        capacity = member.options.repeat_last_n
        counts = self._history.counts(self._row(slot)) if capacity else Counter[int]()
        self._check_enough(slot, len(ids), len(counts))
        refuse_empty([slot], [largest(scores, ids)])
        probs, ids = host_row.probabilities(scores, ids, counts, member.options)
        if len(ids) == 1:  # a point mass needs no noise (SED-5)
            return ids[0] if probs[0] else NO_TOKEN
        return host_row.draw(probs, ids, draw_key(member.key, position, Purpose.TARGET))

    def _check_enough(self, slot: int, held: int, penalised: int) -> None:
        """Whether so many logits decide where penalties look at so many tokens."""
        count = self._slot(slot).decisive
        reason = f"all logits of slot {slot} are needed"
        assert count is not None, reason
        assert self._top_logprobs is None, reason
        count += penalised
        assert count <= held, f"{count} logits of slot {slot} are needed, not {held}"

    def _chain(self, slot: int, drafts: Tensor | None, rows: int) -> Window | None:
        if drafts is None:
            drafts = torch.empty(0, dtype=torch.int64, device=self.device)
        return self._history.chain(self._row(slot), drafts, rows)

    def _scores(
        self, member: _Slot, logits: Tensor, allowed: Tensor | None, ids: Tensor | None
    ) -> Tensor:
        """Masked and biased, [rows, columns] fp32; perhaps `logits` itself, so nobody writes it."""
        columns = self.vocab_size if ids is None else ids.shape[0]
        assert logits.shape[-1] == columns, f"{logits.shape[-1]} columns of logits, not {columns}"
        scores = logits.to(torch.float32)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        if member.bias is None:
            return scores
        if ids is None:
            return scores.index_add(-1, member.bias.ids, member.bias.values.expand(len(scores), -1))
        dense = scores.new_zeros(self.vocab_size)
        return scores + dense.index_put_((member.bias.ids,), member.bias.values)[ids]

    def _penalised(
        self, member: _Slot, scores: Tensor, window: Window | None, ids: Tensor | None
    ) -> Tensor:
        if window is None or not member.options.penalised:
            return scores
        column_of = None
        if ids is not None:
            columns = torch.arange(ids.shape[0], device=self.device)
            column_of = ids.new_full((self.vocab_size,), ids.shape[0]).index_put_((ids,), columns)
        return penalise(scores, window, member.options, column_of)

    def _mask(
        self, allowed: Tensor | None, logits: Tensor, ids: Tensor | None = None
    ) -> Tensor | None:
        """[rows, columns] bool of packed words."""
        if allowed is None:
            return None
        mask = unpack_mask(allowed.to(self.device, non_blocking=True), self.vocab_size)
        mask = mask if ids is None else mask[:, ids]
        return mask.expand(logits.shape[0], -1)

    def _bias(self, options: SamplingOptions) -> _Bias:
        tokens, values = zip(*options.logit_bias, strict=True)
        return _Bias(
            to_device(tokens, self.device),
            torch.tensor(values, dtype=torch.float32).to(self.device, non_blocking=True),
        )

    def _slot(self, slot: int) -> _Slot:
        assert slot in self._slots, f"slot {slot} is not registered; {list(self._slots)} are"
        return self._slots[slot]

    def _row(self, slot: int) -> int:
        """The slot's place in order of registration."""
        return list(self._slots).index(slot)

    def _count_logprobs(self) -> None:
        asked = [s.options.top_logprobs for s in self._slots.values() if s.options.logprobs]
        self._top_logprobs = max(asked, default=None)


def _joined(parts: list[Sampled]) -> Sampled:
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return Sampled(
        torch.cat([part.tokens for part in parts]), Logprobs.cat(logprobs) if logprobs else None
    )
