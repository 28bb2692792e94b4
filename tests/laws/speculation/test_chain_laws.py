"""Whatever a chain drafter proposed, its caches end as if it never had (contract/drafter law 2)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.toy_head import VOCABULARY, ChainRig, ToyHead, pairs

RUNS = st.lists(st.integers(1, 9), min_size=1, max_size=9)
PROPOSALS = st.lists(st.integers(0, 5), max_size=2)  # asked before a run is reported
TEXT = st.lists(st.tuples(PROPOSALS, RUNS), min_size=1, max_size=6)


def next_token(token):
    return (3 * token + 1) % VOCABULARY


@settings(max_examples=100)
@given(text=TEXT, flush_at=st.sampled_from([1, 3, 256]), right=st.booleans())
def test_caches_hold_the_pairs_of_the_text_whatever_was_proposed(text, flush_at, right):
    """MTP-3, MTP-6, DRF-2, DRF-5: offsets, tokens and rows of every pair, after proposals that were
    right or wrong, in runs of any length and flushes at any number."""
    tokens = [token for _, run in text for token in run]
    if right:
        tokens = [7]
        while len(tokens) < sum(len(run) for _, run in text):
            tokens.append(next_token(tokens[-1]))
    rig, position = ChainRig(ToyHead(next_token), flush_at=flush_at), 0
    for asked, run in text:
        for most in asked:
            rig.propose(tokens[position], most)
        rig.commit(tokens[position : position + len(run)], position)
        position += len(run)
    rig.session.close()
    assert rig.pairs[: position - 1] == pairs(tokens[1:])
    assert len(rig.pairs) == position - 1
    rig.session = rig.drafter.open(rig.request)
    rig.commit(tokens[-1:], position - 1)  # as after a restore to the last pair
    rig.session.settle(0)
    assert rig.pairs == pairs([*tokens[1:], 0])


@settings(max_examples=50)
@given(text=TEXT, flush_at=st.sampled_from([1, 3, 256]))
def test_proposals_do_not_depend_on_those_before_them(text, flush_at):
    """A session that was asked before proposes what one says that is asked for the first time."""
    asked, quiet = (ChainRig(ToyHead(next_token), flush_at=flush_at) for _ in range(2))
    position = 0
    for before, run in text:
        for most in before:
            asked.propose(run[0], most)
        for rig in (asked, quiet):
            rig.commit(run, position)
        position += len(run)
    assert asked.propose(3, 4) == quiet.propose(3, 4)
    assert asked.head.fed[-3:] == quiet.head.fed[-3:]
