"""The target answers many prompts at once, and every answer becomes a sequence of the corpus.

One loop of forwards, one token a row each, over a static batch: rows step through their prompts as
they step through their answers, and a row whose sequence has ended takes the next prompt. The host
looks at the rows every few steps only. What a sequence says does not depend on its neighbours:
greedy rows take the largest logit, the others draw with noise of their own (04 SED).
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from forerun.cache.static import StaticBatch
from forerun.contract.model import CacheOptions
from forerun.sampling.noise import seed_key, uniform
from forerun.training.corpus import (
    HELD_OUT,
    Written,
    collect,
    read_corpus,
    shards,
    write_shard,
)
from forerun.training.encoded import EncodedPrompts
from forerun.training.recipe import Report, Writing
from forerun.training.target import Target

_LOOK = 16  # steps between two looks of the host at the rows
_SHARD_S = 45.0  # seconds after which what is finished is written to disk


@dataclass(slots=True)
class _Row:
    """What the host knows of one row."""

    prompt: int
    known: int  # tokens given so far: the row writes from there on
    spans: list[tuple[int, int]]  # what it has written in earlier turns
    followed: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """When writing ends: at so many tokens of the target's own, or after so many seconds."""

    tokens: int
    seconds: float


def write_corpus(
    target: Target,
    prompts: EncodedPrompts,
    folder: Path,
    *,
    writing: Writing,
    budget: Budget,
    seed: int,
    report: Report,
) -> int:
    """Write sequences into `folder` until the budget or the prompts are used up.

    Goes on where an earlier call stopped, and past its time until there is text to train on.
    Returns the tokens that the target wrote, in all calls.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done, total = set[int](), 0
    if shards(folder):
        before = read_corpus(folder)
        done, total = set(before.items.tolist()), int(before.own.sum())
    writer = _Writer(target, prompts, writing, done, seed)
    pending, taught = list[Written](), _teach(done)
    began = saved = time.monotonic()
    finished = False
    while not finished:
        report("writing", min(total, budget.tokens), budget.tokens)
        new = list(writer.look())
        finished = writer.idle or total + _own(new) >= budget.tokens
        if finished or time.monotonic() - began > budget.seconds:
            rest = list(writer.partial())
            finished = finished or taught or _teach(one.item for one in (*new, *rest))
            new += rest if finished else []
        pending += new
        total, taught = total + _own(new), taught or _teach(one.item for one in new)
        if pending and (finished or time.monotonic() - saved > _SHARD_S):
            write_shard(folder, collect(pending))
            pending, saved = [], time.monotonic()
    return total


def _own(written: Iterable[Written]) -> int:
    return sum(int(one.own.sum()) for one in written)


def _teach(items: Iterable[int]) -> bool:
    """Whether any of these sequences is trained on."""
    return any(item // 2 % HELD_OUT for item in items)


class _Writer:
    """The rows under way. The first of them are greedy, the others are sampled."""

    def __init__(
        self,
        target: Target,
        prompts: EncodedPrompts,
        writing: Writing,
        done: set[int],
        seed: int,
    ) -> None:
        self._target, self._prompts, self._writing, self._seed = target, prompts, writing, seed
        count, device = writing.rows, target.device
        caches = target.model.new_caches(CacheOptions(writing.capacity))
        self._batch = StaticBatch.beside(caches, count, writing.capacity)
        self._greedy = math.ceil(count * writing.greedy)
        self._queues = [iter(_queue(prompts, done, writing, (seed, mode))) for mode in (0, 1)]
        self._rows: list[_Row | None] = [None] * count
        self._tokens = torch.zeros(count, writing.capacity, dtype=torch.int64, device=device)
        self._known = torch.zeros(count, dtype=torch.int64, device=device)
        self._ends = torch.zeros(count, dtype=torch.int64, device=device)  # 0: still writing
        self._keys = torch.zeros(count, dtype=torch.int64, device=device)
        self._eos = torch.tensor(sorted(prompts.eos), dtype=torch.int64, device=device)
        self._fill(range(count))

    @property
    def idle(self) -> bool:
        """Every prompt has been answered."""
        return all(row is None for row in self._rows)

    def look(self) -> Iterator[Written]:
        """Take some steps; the sequences that have ended by then. Their rows go on."""
        with torch.inference_mode():
            for _ in range(_LOOK):
                self._step()
        ends = self._ends.tolist()
        ended = [place for place, end in enumerate(ends) if end and self._rows[place] is not None]
        index = torch.tensor(ended, dtype=torch.int64, device=self._tokens.device)
        tokens = self._tokens[index].cpu()
        free = []
        for place, written in zip(ended, tokens, strict=True):
            if not self._follow(place, written, ends[place]):
                yield from self._sequence(place, written, ends[place])
                free.append(place)
        self._fill(free)

    def partial(self) -> Iterator[Written]:
        """What rows have written that have not ended, if it is enough to learn from."""
        tokens = self._tokens.cpu()
        for place, offset in enumerate(self._batch.offsets):
            if self._rows[place] is not None:
                yield from self._sequence(place, tokens[place], offset + 1)

    def _step(self) -> None:
        """One token a row: read the current one, and where the text is not known, write the next.

        All on the device: nothing here waits.
        """
        batch, model = self._batch, self._target.model
        current = self._tokens.gather(1, batch.starts[:, None])[:, 0]
        hidden = model.forward(batch.step(current), batch.caches).hidden[:, 0]
        batch.advance()
        place = batch.starts
        drawn = self._drawn(model.unembed(hidden), place)
        given = (place < self._known) | (self._ends > 0)
        token = torch.where(given, self._tokens.gather(1, place[:, None])[:, 0], drawn)
        self._tokens.scatter_(1, place[:, None], token[:, None])
        full = place + 1 >= torch.clamp(self._known + self._writing.answer, max=batch.capacity)
        ended = ~given & (full | torch.isin(token, self._eos))
        self._ends.copy_(torch.where(ended, place + 1, self._ends))

    def _drawn(self, logits: Tensor, place: Tensor) -> Tensor:
        """[rows] tokens; `place` is where each will stand."""
        largest = logits[: self._greedy].argmax(-1)
        heat = self._writing.temperature
        mass = torch.softmax(logits[self._greedy :].float() / heat, -1).cumsum_(-1)
        # a row's noise is a function of its prompt and of the place
        at = uniform(self._keys[self._greedy :], place[self._greedy :, None]) * mass[:, -1:]
        sampled = torch.searchsorted(mass, at).clamp_(max=logits.shape[-1] - 1)[:, 0]
        return torch.cat((largest, sampled))

    def _follow(self, place: int, written: Tensor, end: int) -> bool:
        """Let the user speak again, where the prompt has more to say and there is room for it."""
        row = self._rows[place]
        assert row is not None
        further = self._prompts.follow_up(row.prompt)
        stopped = int(written[end - 1]) in self._prompts.eos
        room = self._writing.capacity - (end - 1 + len(further)) > self._writing.least
        if row.followed or not len(further) or not stopped or not room:
            return False
        known = end - 1 + len(further)  # what follows says the end of the answer itself
        row.spans.append((row.known, end))
        row.known, row.followed = known, True
        self._tokens[place, end - 1 : known] = further.to(self._tokens)
        self._known[place], self._ends[place] = known, 0
        self._batch.rewind([place], [end - 1])
        return True

    def _sequence(self, place: int, written: Tensor, end: int) -> Iterator[Written]:
        row = self._rows[place]
        assert row is not None
        own = torch.zeros(end, dtype=torch.bool)
        for first, last in [*row.spans, (row.known, end)]:
            own[first:last] = True
        if int(own.sum()) >= self._writing.least:
            mode = 0 if place < self._greedy else 1
            yield Written(2 * row.prompt + mode, written[:end], own)

    def _fill(self, places: Iterable[int]) -> None:
        """Give each of these rows the next prompt of its kind, or none."""
        started, texts, known, keys = [], [], [], []
        for place in places:
            prompt = next(self._queues[place >= self._greedy], None)
            self._rows[place] = None
            if prompt is None:
                continue
            text = self._prompts.prompt(prompt)
            self._rows[place] = _Row(prompt, len(text), [])
            known.append(len(text))
            texts.append(functional.pad(text, (0, self._writing.capacity - len(text))))
            keys.append(_signed(seed_key(self._seed << 32 | prompt)))
            started.append(place)
        if not started:
            return
        index = torch.tensor(started, device=self._tokens.device)
        self._tokens[index] = torch.stack(texts).to(self._tokens)
        self._keys[index] = torch.tensor(keys).to(self._keys)
        self._known[index] = torch.tensor(known).to(self._known)
        self._ends[index] = 0
        self._batch.rewind(started, [0] * len(started))


def _queue(
    prompts: EncodedPrompts, done: set[int], writing: Writing, order: tuple[int, int]
) -> list[int]:
    """Prompts that have not been answered in that way, by (seed, mode)."""
    seed, mode = order
    generator = torch.Generator().manual_seed(2 * seed + mode)
    early, late, own = (
        [numbers[place] for place in torch.randperm(len(numbers), generator=generator).tolist()]
        for numbers in (
            range(prompts.early),
            range(prompts.early, len(prompts)),
            prompts.self_numbers,
        )
    )
    longest = writing.capacity - writing.least
    return [
        number
        for number in [*early, *_mixed(late, own, writing.self_written)]
        if len(prompts.prompt(number)) <= longest and 2 * number + mode not in done
    ]


def _mixed(one: Sequence[int], other: Sequence[int], share: float) -> list[int]:
    """Both in their order, of which `other` makes up `share` for as long as both last."""
    placed = [((count + 0.5) * share, number) for count, number in enumerate(one)]
    placed += [((count + 0.5) * (1 - share), number) for count, number in enumerate(other)]
    return [number for _, number in sorted(placed, key=itemgetter(0))]


def _signed(key: int) -> int:
    return key - (1 << 64) if key >= 1 << 63 else key
