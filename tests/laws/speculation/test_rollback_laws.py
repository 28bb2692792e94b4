"""After any round the caches are those of a text that was never drafted for (RND-4, 9, 10).

Real caches over rows of one number a token. A window of 4 with a slack of 16, as much as a model's
has at least, so that rounds fall before, at and after the wrap.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.layer_kinds import WINDOW, RowLayer, layer, open_lazy
from forerun.cache.rotating import RotatingCache
from forerun.contract.model import WIDEST_ROUND
from forerun.speculation.rollback import Rollback

KINDS = ("kv", "sliding", "recurrent")
TOKEN = st.integers(0, 5)


def layers(kinds):
    made = [layer(kind) for kind in kinds]
    for one in made:
        if isinstance(one, RowLayer) and isinstance(one.cache, RotatingCache):
            one.cache = RotatingCache(one.cache._shape, WINDOW, WIDEST_ROUND)
    return made


def rollback_of(made):
    """Stateless layers have no cache (01 CTR)."""
    return Rollback([None, *(one.cache for one in made), None])


def check_at_rest(made, tokens):
    """The tokens, no schedule, and no snapshot that somebody forgot to close."""
    for one in made:
        assert one.holds(tokens)
        one.cache.prepare_snapshots([])
        assert one.cache.take_snapshots() == []
        assert open_lazy(one.cache) == 0


@st.composite
def rounds(draw):
    drafts = draw(st.lists(TOKEN, min_size=0, max_size=WIDEST_ROUND - 1))
    return draw(TOKEN), drafts, draw(st.integers(0, len(drafts)))


@settings(deadline=None, max_examples=80)
@given(
    prompt=st.lists(TOKEN, min_size=0, max_size=50),
    played=st.lists(rounds(), min_size=1, max_size=6),
)
def test_the_caches_hold_what_was_kept_and_nothing_else(prompt, played):
    """RND-4, RND-9: rounds of up to 15 drafts in every kind of cache, one behind the other."""
    made = layers(KINDS)
    rollback, held = rollback_of(made), list(prompt)
    if held:
        for one in made:
            one.feed(held)
    for current, drafts, keep in played:
        rollback.begin(len(held), len(drafts))
        for one in made:
            one.feed([current, *drafts])
        rollback.commit(keep)
        held += [current, *drafts[:keep]]
        check_at_rest(made, held)


@pytest.mark.parametrize("keep", [0, 1, 4])
@pytest.mark.parametrize("before", [0, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_draft_leaves_a_window_before_at_and_after_its_wrap(kind, before, keep):
    """RND-9: the same, at the places where a ring is most easily wrong."""
    made, held = layers([kind]), [token % 6 for token in range(before)]
    if held:
        made[0].feed(held)
    rollback = rollback_of(made)
    rollback.begin(len(held), 4)
    made[0].feed([5, 4, 3, 2, 1])
    rollback.commit(keep)
    check_at_rest(made, [*held, *[5, 4, 3, 2, 1][: keep + 1]])


@settings(deadline=None, max_examples=60)
@given(
    prompt=st.lists(TOKEN, min_size=1, max_size=40),
    drafts=st.lists(TOKEN, min_size=0, max_size=WIDEST_ROUND - 1),
    written=st.integers(0, len(KINDS)),
    reply=st.lists(TOKEN, min_size=1, max_size=4),
)
def test_a_round_that_fails_leaves_at_most_its_current_token(prompt, drafts, written, reply):
    """RND-10: the forward raised after some layers; those rest at their current token."""
    made = layers(KINDS)
    for one in made:
        one.feed(prompt)
    rollback = rollback_of(made)
    rollback.begin(len(prompt), len(drafts))
    for one in made[:written]:
        one.feed([5, *drafts])
    rollback.abandon()
    rollback.abandon()
    check_at_rest(made[:written], [*prompt, 5])
    check_at_rest(made[written:], prompt)
    for one in made[written:]:
        one.feed([5])
    rollback.begin(len(prompt) + 1, len(reply))
    for one in made:
        one.feed([4, *reply])
    rollback.commit(len(reply))
    check_at_rest(made, [*prompt, 5, 4, *reply])


def test_caches_that_rewind_live_are_not_captured():
    """RND-4: a capture a layer and a draft would cost more than the draft."""
    made = layers(["kv", "sliding"])
    for one in made:
        one.feed([1, 2, 3])
    rollback = rollback_of(made)
    rollback.begin(3, 3)
    for one in made:
        one.feed([4, 5, 4, 5])
        assert open_lazy(one.cache) == 0
        assert one.cache._schedule.offsets is None
    rollback.commit(3)


def test_full_acceptance_restores_nothing():
    """RND-9: the live state stays, although every token of the round was captured."""
    made = layers(["recurrent"])
    cache = made[0].cache
    made[0].feed([1, 2, 3])
    rollback = rollback_of(made)
    rollback.begin(3, 2)
    made[0].feed([4, 5, 4])
    generation, restored = cache.generation, []
    cache._take_over = restored.append
    rollback.commit(2)
    assert (restored, cache.generation) == ([], generation)


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_every_capture_of_a_round_is_closed(keep):
    """RND-9: the one that led back too, and all of a round that kept everything."""
    made, captures = layers(["recurrent"]), []
    cache = made[0].cache
    made[0].feed([1])
    take = cache.take_snapshots

    def taking():
        captures.extend(take())
        return captures

    cache.take_snapshots = taking
    rollback = rollback_of(made)
    rollback.begin(1, 2)
    made[0].feed([2, 3, 4])
    rollback.commit(keep)
    assert len(captures) == 2
    for capture in captures:
        with pytest.raises(AssertionError, match="closed twice"):
            capture.close()


class StuckCache(RotatingCache):
    """A cache whose rewind is refused."""

    def restore(self, snapshot, target):  # noqa: ARG002
        return False


def test_a_rewind_that_is_refused_is_fatal_and_leaves_no_schedule():
    """RND-9: it never returns quietly; the other caches' captures are closed all the same."""
    made = layers(["recurrent"])
    stuck = RowLayer("sliding")
    stuck.cache = StuckCache(stuck.cache._shape, WINDOW, WIDEST_ROUND)
    made.append(stuck)
    for one in made:
        one.feed([1])
    rollback = rollback_of(made)
    rollback.begin(1, 2)
    for one in made:
        one.feed([2, 3, 4])
    with pytest.raises(AssertionError, match="StuckCache at 4 does not return to 2"):
        rollback.commit(0)
    rollback.abandon()
    made[0].cache.prepare_snapshots([])
    assert made[0].cache.take_snapshots() == []


def test_rounds_do_not_overlap():
    """A round ends before the next begins, and no more is kept than was drafted."""
    rollback = rollback_of(layers(["kv"]))
    with pytest.raises(AssertionError):
        rollback.commit(0)
    rollback.begin(0, 2)
    with pytest.raises(AssertionError):
        rollback.begin(0, 2)
    with pytest.raises(AssertionError):
        rollback.commit(3)
