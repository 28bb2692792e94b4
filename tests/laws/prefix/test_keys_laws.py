"""Keys of the prefix trie: what a match of keys says about the tokens behind it (spec 02 KEY)."""

import itertools
import random
import struct
from typing import Literal

from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.prefix.keys import MediaRange, effective_tokens, fold, keys_of

LookAhead = Literal[0, 1]
TOKENS = st.lists(st.integers(0, 2), max_size=8)  # few, so that prefixes collide often
WIDE = st.lists(st.integers(0, 2**31 - 1) | st.integers(2**31, 2**40), max_size=5)
LOOK_AHEADS: st.SearchStrategy[LookAhead] = st.sampled_from((0, 1))
FOLDS = (fold(b"red", (64, 64)), fold(b"blue", (64, 64)))


def _common(one: tuple[int, ...] | list[int], other: tuple[int, ...] | list[int]) -> int:
    pairs = zip(one, other, strict=False)
    shorter = min(len(one), len(other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)


@st.composite
def media_in(draw: st.DrawFn, length: int) -> list[MediaRange]:
    """Ranges in order that do not overlap."""
    edges = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
    return [
        MediaRange(start, end, draw(st.sampled_from(FOLDS)), draw(st.booleans()))
        for start, end in zip(edges[::2], edges[1::2], strict=False)
    ]


@given(tokens=TOKENS)
def test_without_look_ahead_each_token_is_its_key(tokens: list[int]) -> None:
    """02 KEY-3."""
    assert keys_of(tuple(tokens), 0) == tuple(tokens)


@given(tokens=WIDE)
def test_with_look_ahead_each_token_but_the_last_has_a_key(tokens: list[int]) -> None:
    """02 KEY-4: n tokens have max(n - 1, 0) keys, each of a token and its successor."""
    keys = keys_of(tuple(tokens), 1)
    assert keys == tuple((a << 64) | b for a, b in itertools.pairwise(tokens))
    assert len(keys) == max(len(tokens) - 1, 0)


@given(one=WIDE, other=WIDE)
def test_pair_keys_are_equal_only_for_equal_pairs(one: list[int], other: list[int]) -> None:
    """02 KEY-4: packing loses nothing, folds included (02 KEY-8)."""
    assume(len(one) > 1 and len(other) > 1)
    same = keys_of(tuple(one[:2]), 1) == keys_of(tuple(other[:2]), 1)
    assert same == (one[:2] == other[:2])


@given(one=TOKENS, other=TOKENS, look_ahead=LOOK_AHEADS)
def test_k_matching_keys_verify_the_tokens_that_they_look_ahead_to(
    one: list[int], other: list[int], look_ahead: LookAhead
) -> None:
    """02 KEY-5: k keys verify k + look_ahead tokens. 02 KEY-6: a difference at j breaks j - 1."""
    common = _common(keys_of(tuple(one), look_ahead), keys_of(tuple(other), look_ahead))
    assert common == max(_common(one, other) - look_ahead, 0)


@given(data=st.data(), tokens=TOKENS)
def test_a_media_range_holds_its_fold_and_nothing_else_changes(
    data: st.DataObject, tokens: list[int]
) -> None:
    """02 KEY-1, and 02 KEY-8: without media the effective tokens are the tokens."""
    media = data.draw(media_in(len(tokens)))
    effective = effective_tokens(tuple(tokens), media)
    inside = {place: item.fold for item in media for place in range(item.start, item.end)}
    assert effective == tuple(inside.get(place, token) for place, token in enumerate(tokens))


@given(data=st.data(), tokens=TOKENS, look_ahead=LOOK_AHEADS)
def test_prompts_with_different_media_share_only_the_text_before_them(
    data: st.DataObject, tokens: list[int], look_ahead: LookAhead
) -> None:
    """02 KEY-9, scenario 16: equal text, equal places, another picture."""
    start = data.draw(st.integers(0, len(tokens)))
    end = data.draw(st.integers(start, len(tokens)))
    assume(start < end)
    red, blue = (
        keys_of(
            effective_tokens(tuple(tokens), [MediaRange(start, end, which, causal=False)]),
            look_ahead,
        )
        for which in FOLDS
    )
    assert _common(red, blue) == max(start - look_ahead, 0)


@given(
    one=st.tuples(st.binary(max_size=3), st.lists(st.integers(0, 3), max_size=2)),
    other=st.tuples(st.binary(max_size=3), st.lists(st.integers(0, 3), max_size=2)),
)
def test_folds_are_equal_for_equal_bytes_and_dimensions_alone(
    one: tuple[bytes, list[int]], other: tuple[bytes, list[int]]
) -> None:
    """02 KEY-2, 02 KEY-9: the same picture at two resolutions is two."""
    assert (fold(*one) == fold(*other)) == (one == other)
    assert fold(*one) >= 2**31


def test_a_hundred_thousand_folds_never_meet() -> None:
    """02 KEY-2, scenario 22: and each keeps its fold, asked for in another order."""
    items = [(struct.pack("<I", n // 2), (n % 2,)) for n in range(100_000)]
    folds = {item: fold(*item) for item in items}
    assert len(set(folds.values())) == len(items)
    assert min(folds.values()) >= 2**31
    random.Random(0).shuffle(items)
    assert all(fold(*item) == folds[item] for item in items)


@given(data=st.binary(max_size=40), cut=st.integers(0, 40))
def test_media_whose_bytes_share_a_beginning_are_told_apart(data: bytes, cut: int) -> None:
    """02 KEY-2, scenario 22."""
    prefix = data[:cut]
    assert (fold(data, ()) == fold(prefix, ())) == (data == prefix)
