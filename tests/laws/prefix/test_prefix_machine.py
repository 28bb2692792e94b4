"""Drives a prefix cache through arbitrary requests, against the plainest model: all sequences.

The layers are real caches of one number a token, so that what they hold is seen exactly. Tokens
are few, prompts short and often made of earlier ones, so that they share, part and repeat all the
time; captures lie close. Requests end in every way that there is: answered, cancelled between
chunks, refused in the middle, broken with the layers at different offsets.

Rules: 02 STR-1..5, 02 STR-8, 02 KEY-7, MAT-1, BEG-2..5, SWI-1..5, SWI-8, 02 SCH-1..4, ATT-1, ATT-3,
ATT-5, ADV-1, CMP-1, CLO-1, CLO-4, CLO-5, EVI-1, EVI-2, EVI-9, CAN-2, CAN-3, MED-1, MED-2, B01,
B05, B17.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fixtures.layer_kinds import LAYOUTS, LookAhead, Rig, effective
from fixtures.prefix_invariants import (
    below,
    check,
    check_contents,
    check_live,
    check_within_budget,
    keys_to,
)
from forerun.base.errors import BusyError, CancelledError
from forerun.prefix.captures import CaptureRule, PendingCapture
from forerun.prefix.keys import MediaRange, fold, keys_of
from forerun.prefix.session import Session

Keys = tuple[int, ...]
Item = tuple[int, int, bool]  # fold, tokens, causal
PLENTY = 1 << 40
LONGEST = 40  # tokens of a sequence that later ones are made of
PLACEHOLDER = 2  # the token that fills a media range
TEXT = st.lists(st.integers(0, 2), max_size=6)
STATEFUL = {layout for layout, kinds in LAYOUTS.items() if None not in kinds}
ITEMS = st.sampled_from(
    [(fold(b"red", ()), 3, False), (fold(b"blue", ()), 4, False), (fold(b"beep", ()), 3, True)]
)


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...] = ()
    media: tuple[MediaRange, ...] = ()

    def until(self, end: int) -> "Prompt":
        """Its beginning, at most `end` tokens, of whole items."""
        end = min([end, *(item.start for item in self.media if item.start < end < item.end)])
        return Prompt(self.tokens[:end], tuple(m for m in self.media if m.end <= end))

    def then(self, tokens: Sequence[int]) -> "Prompt":
        return Prompt((*self.tokens, *tokens), self.media)

    def showing(self, item: Item) -> "Prompt":
        content, length, causal = item
        place = MediaRange(len(self.tokens), len(self.tokens) + length, content, causal)
        return Prompt((*self.tokens, *(PLACEHOLDER,) * length), (*self.media, place))

    def cut_at(self, position: int) -> MediaRange | None:
        """The item that must stay whole and has `position` inside."""
        cut = (m for m in self.media if not m.causal and m.start < position < m.end)
        return next(cut, None)


@dataclass(frozen=True, slots=True)
class Ending:
    """`after` counts evaluated chunks, drawn tokens or begun forwards; `layers` of a broken forward
    have written.
    """

    how: str = "answered"
    after: int = 0
    layers: int = 0


class Broken(Exception):
    """A bug in the middle of a forward."""


BREAKS = {"halted": BusyError, "broken": Broken, "out of memory": MemoryError}  # in a forward
ENDINGS = st.one_of(
    st.just(Ending()),
    st.just(Ending()),
    st.builds(Ending, st.just("cancelled"), st.integers(0, 4)),
    st.builds(Ending, st.just("refused"), st.integers(0, 3)),
    st.builds(Ending, st.sampled_from(list(BREAKS)), *[st.integers(0, 4)] * 2),
)


class PrefixLaws(RuleBasedStateMachine):
    layout: str

    @initialize(
        look_ahead=st.sampled_from([0, 1]),
        interval=st.integers(3, 8),
        before_end=st.integers(1, 4),
        budget=st.just(PLENTY) | st.integers(0, 400),
    )
    def load(self, look_ahead: LookAhead, interval: int, before_end: int, budget: int) -> None:
        self.rule = CaptureRule(interval=interval, before_end=before_end)
        self.now = 0.0
        self.rig = Rig(
            self.layout,
            look_ahead,
            budget_bytes=budget,
            captures=self.rule,
            clock=lambda: self.now,
        )
        self.prefix, self.look_ahead = self.rig.prefix, look_ahead
        self.layers = [*self.rig.targets, *self.rig.drafts]
        self.asked: list[Prompt] = [Prompt()]
        self.whole = budget == PLENTY  # nothing can have been evicted
        self.forget()

    def forget(self) -> None:
        self.held: list[Keys] = []  # every sequence that was recorded
        self.live: Keys = ()  # what the layers hold
        self.points: set[Keys] = set()  # where a request can resume, for good
        self.ends: set[Keys] = set()  # likewise, until a longer sequence grows past
        self.users: set[Keys] = set()  # user captures that were attached

    @rule(
        data=st.data(),
        new=TEXT,
        item=st.none() | st.none() | ITEMS,
        chunk=st.integers(1, 9),
        reply=TEXT,
        ending=ENDINGS,
        passed=st.integers(0, 1),
    )
    def request(self, data, new, item, chunk, reply, ending, passed):
        self.now += passed
        base = data.draw(st.sampled_from(self.asked))
        prompt = base.until(data.draw(st.integers(0, len(base.tokens)) | st.just(LONGEST)))
        if item is not None:
            prompt = prompt.showing(item)
        prompt = prompt.then(new)
        if not prompt.tokens:
            prompt = Prompt((0,))
        if data.draw(st.booleans()):
            reply = self.stored_after(prompt, len(reply))
        self.answer(prompt, reply, chunk, ending)

    @precondition(lambda self: not self.whole)
    @rule(budget=st.just(PLENTY) | st.integers(0, 600))
    def set_budget(self, budget: int) -> None:
        """At once, and no step makes things worse."""
        before = self.prefix.snapshot_bytes
        self.prefix.set_budget(budget)
        assert self.prefix.snapshot_bytes <= before
        check_within_budget(self.prefix, self.rig.caches)
        self.check()

    @rule()
    def clear(self) -> None:
        self.prefix.clear()
        assert self.prefix.snapshot_bytes == self.rig.offset == 0
        assert len(self.prefix.nodes()) == 1
        self.forget()
        self.check()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check_released()

    def answer(self, prompt: Prompt, reply: Sequence[int], chunk: int, ending: Ending) -> None:
        tokens = effective(prompt.tokens, prompt.media)
        with (
            suppress(CancelledError, BusyError, Broken, MemoryError),
            self.prefix.begin(prompt.tokens, prompt.media) as session,
        ):
            self.check_begun(session, prompt)
            pending, self.reached = session.pending, None
            self.prefill(session, prompt, chunk, ending)
            session.attach()
            assert not session.pending
            self.reached = len(tokens) - 1
            self.decode(session, [*tokens, *reply], ending)
        keys = keys_of((*tokens, *session.outputs), self.look_ahead)
        if self.broken and ending.how == "out of memory":
            self.whole = False
        self.record(keys, session, pending, ended=not self.broken)
        self.asked.append(Prompt((*prompt.tokens, *session.outputs), prompt.media).until(LONGEST))
        self.check()
        if not self.broken:
            check_within_budget(self.prefix, self.rig.caches)

    def prefill(self, session: Session, prompt: Prompt, chunk: int, ending: Ending) -> None:
        """Chunks do not cut an item whose tokens see each other."""
        tokens = effective(prompt.tokens, prompt.media)
        self.forwards, self.broken = 0, False
        position, last, chunks = session.cached, len(tokens) - 1, 0
        while position < last:
            if ending == Ending("cancelled", chunks):
                self.rig.settle(tokens[: position + 1])
                self.reached = position
                raise CancelledError("the caller left")
            end = min(position + chunk, last)
            cut = prompt.cut_at(end)
            end = min(end if cut is None else cut.end, last)
            self.forward(tokens[:end], ending)
            position, chunks = end, chunks + 1
        self.rig.settle(tokens)

    def decode(self, session: Session, sequence: Sequence[int], ending: Ending) -> None:
        for end in range(len(session.tokens), len(sequence)):
            if ending == Ending("refused", len(session.outputs)):
                raise BusyError("refused")
            self.forward(sequence[:end], ending)
            session.outputs.append(sequence[end])
            self.rig.settle(sequence[: end + 1])

    def forward(self, sequence: Sequence[int], ending: Ending) -> None:
        if ending.how in BREAKS and self.forwards == ending.after:
            self.broken = True
            for target in self.rig.targets[: ending.layers]:
                target.feed(sequence[target.cache.offset :])
            if ending.how == "halted" and self.reached is None:
                self.reached = min(layer.cache.offset for layer in self.layers)
            raise BREAKS[ending.how]("broke off")
        self.forwards += 1
        self.rig.forward(sequence)

    def check_begun(self, session: Session, prompt: Prompt) -> None:
        tokens = effective(prompt.tokens, prompt.media)
        keys, cached = keys_of(tokens, self.look_ahead), session.cached
        self.rig.check_holds(tokens[: cached + self.look_ahead])
        check_live(self.prefix, self.layers, self.look_ahead)
        assert 0 <= cached < len(tokens), "something is left to evaluate"
        assert prompt.cut_at(cached) is None, "nothing resumes inside an item that must stay whole"
        matched = max((_common(keys, other) for other in self.held), default=0)
        assert session.matched <= matched
        limit = min(session.matched, len(tokens) - 1)
        cut = prompt.cut_at(limit)
        limit = limit if cut is None else cut.start
        assert cached <= limit
        assert session.pending == self.planned(prompt, cached, limit)
        if self.whole:
            assert session.matched == matched
            points = (len(p) for p in self.points | self.ends if p == keys[: len(p)])
            resumable = (at for at in points if at <= limit and prompt.cut_at(at) is None)
            assert cached >= max(resumable, default=0)
        if self.rig.rewinds:
            shared = min(_common(keys, self.live), len(tokens) - 1)
            cut = prompt.cut_at(shared)
            assert cached >= (shared if cut is None else cut.start)
            assert cached == limit or not self.whole
        held = len(self.live)
        if self.live == keys[:held] and held <= limit and prompt.cut_at(held) is None:
            assert cached >= held, "what the layers hold is never evaluated again"

    def planned(self, prompt: Prompt, cached: int, branch: int) -> tuple[PendingCapture, ...]:
        """02 SCH-1 to 02 SCH-4, BEG-5, written out once more."""
        total = len(prompt.tokens)
        offsets = {branch: False} if branch > cached else {}
        for offset in {*range(1, total)}:
            if offset % self.rule.interval == 0 or offset == total - self.rule.before_end:
                lowered = offset - self.look_ahead
                cut = prompt.cut_at(lowered)
                moved = lowered if cut is None else cut.end
                if cached < moved <= total:
                    offsets[moved] = True
        return tuple(PendingCapture(at, offsets[at]) for at in sorted(offsets))

    def record(
        self, keys: Keys, session: Session, pending: Sequence[PendingCapture], *, ended: bool
    ) -> None:
        """What the request left behind: of a broken one, only what was attached before."""
        self.live = keys[: self.rig.offset]
        reached = [p for p in pending if p.offset <= (self.reached or 0)]
        for capture in reached:
            point = keys[: capture.offset]
            if capture.user:
                self.users.add(point)
            if capture.user or self.parts_at(point, self.live):
                self.points.add(point)
        self.held += [keys[: capture.offset] for capture in reached] + [self.live]
        longest = max(self.held[-len(reached) - 1 :], key=len)
        self.ends = {end for end in self.ends if not _begins(end, longest)}
        if ended and len(self.live) > max([session.cached, *(p.offset for p in reached)]):
            self.ends.add(self.live)

    def parts_at(self, point: Keys, keys: Keys) -> bool:
        """Whether stored sequences part after `point`, so that nothing joins what they share."""
        return len(keys) > len(point) and any(
            _begins(point, other) and other[: len(point) + 1] != keys[: len(point) + 1]
            for other in self.held
        )

    def stored_after(self, prompt: Prompt, length: int) -> list[int]:
        """How an earlier sequence went on after the prompt."""
        begun = len(prompt.tokens)
        for asked in self.asked:
            if asked.until(begun) == prompt and not any(m.end > begun for m in asked.media):
                return list(asked.tokens[begun : begun + length])
        return []

    def check(self) -> None:
        check(self.prefix, self.rig.caches)
        check_contents(self.prefix, self.layers, self.look_ahead)
        assert keys_to(self.prefix.path[-1]) == self.live
        users = {keys_to(node) for node in below(self.prefix.root) if node.user}
        assert users <= self.users
        assert users == self.users or not self.whole, "a user node outlives every request (CMP-3)"


def _begins(short: Keys, long: Keys) -> bool:
    return len(short) < len(long) and long[: len(short)] == short


def _common(one: Keys, other: Keys) -> int:
    pairs = zip(one, other, strict=False)
    shorter = min(len(one), len(other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)


class _Unlevel(logging.Handler):
    """SWI-5: nothing that happens here is worth a warning, but want of memory."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


@pytest.fixture(autouse=True)
def never_unlevel():
    handler = _Unlevel(logging.WARNING)
    log = logging.getLogger("forerun.prefix.prefix_cache")
    log.addHandler(handler)
    yield
    log.removeHandler(handler)


def run(layout: str, examples: int, steps: int = 20) -> None:
    laws = type("Laws", (PrefixLaws,), {"layout": layout})
    run_state_machine_as_test(
        laws,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prefix_cache_is_its_list_of_sequences(layout: str) -> None:
    run(layout, 15 if layout in STATEFUL else 5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_live_tokens_that_end_inside_a_whole_item_are_evaluated_again(layout: str) -> None:
    """02 BEG-3: as found by the machine, where layers cannot go on to the item's end."""
    laws = PrefixLaws()
    laws.layout = layout
    laws.load(look_ahead=0, interval=3, before_end=1, budget=PLENTY)
    shown = Prompt().showing((fold(b"red", ()), 3, False))
    for prompt, reply in ((shown, ()), (shown, (0, 0, 0)), (shown, ()), (shown.then([0]), ())):
        laws.answer(prompt, reply, 1, Ending())
    laws.teardown()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prefix_cache_is_its_list_of_sequences_over_thousands_of_examples(layout: str) -> None:
    run(layout, 2000, 40)
