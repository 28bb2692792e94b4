"""What a sequence is looked up by: 02 KEY."""

import hashlib

import pytest

from fixtures.checked_rig import CASES, NEVER, CheckedRig, each
from forerun.prefix.keys import MediaRange, effective_tokens, fold, keys_of, token_of
from forerun.prefix.prefix_cache import PrefixCache

PNG, JPEG = b"\x89PNG" + bytes(60), b"\xff\xd8\xff" + bytes(60)


def image(start, end, data=PNG, *dims):
    return MediaRange(start, end, fold(data, dims or (224, 224)), causal=False)


def test_a_media_range_reads_as_its_fold_and_the_rest_as_it_is():
    """02 KEY-1."""
    item = image(2, 5)
    assert effective_tokens([1, 2, 9, 9, 9, 3], [item]) == (1, 2, *[item.fold] * 3, 3)
    other = image(0, 1, JPEG)
    assert effective_tokens([9, 2, 9, 9, 9], [other, item]) == (other.fold, 2, *[item.fold] * 3)


@each(CASES)
def test_a_reply_is_never_media(layout, look_ahead):
    """02 KEY-1: a placeholder's id that is drawn is a token like any other."""
    rig = CheckedRig(layout, look_ahead)
    item = image(2, 5)
    rig.run([1, 2, 9, 9, 9, 3, 4], [9, 9, 5], media=[item])
    onward = rig.run([1, 2, 9, 9, 9, 3, 4, 9, 9, 5, 6], media=[item])
    assert onward.matched == onward.cached == 9


def test_a_fold_stands_for_bytes_and_sizes():
    """02 KEY-2, 02 KEY-9: equal content meets again, another image or resolution never does."""
    one = fold(PNG, (224, 224))
    assert one >= 1 << 31
    assert fold(bytes(bytearray(PNG)), [224, 224]) == one
    others = {fold(JPEG, (224, 224)), fold(PNG, (448, 224)), fold(PNG, (224, 448)), fold(PNG, ())}
    assert len(others) == 4
    assert one not in others


def test_a_fold_is_of_all_bytes_and_of_wide_sizes():
    """02 KEY-2: no bytes and no dimension are cut off."""
    long = bytes(1 << 16)
    assert fold(long + b"a", (1,)) != fold(long + b"b", (1,))
    assert fold(b"", (1,)) != fold(b"", (1 << 8,)) != fold(b"", (1 << 40,))


def test_folds_of_many_contents_are_as_many_numbers():
    """02 KEY-2: two people's images never meet, and a number never goes to another content."""
    contents = [hashlib.sha256(bytes([i, j])).digest() for i in range(40) for j in range(100)]
    folds = [fold(data, (8, 8)) for data in contents]
    assert len(set(folds)) == len(contents)
    assert [fold(data, (8, 8)) for data in contents] == folds


def test_without_a_look_ahead_a_key_is_a_token():
    """02 KEY-3."""
    assert keys_of((5, 6, 7), 0) == (5, 6, 7)
    assert keys_of((), 0) == ()


def test_with_a_look_ahead_a_key_is_a_pair():
    """02 KEY-4: n tokens make n - 1 keys, the last token has none until its successor is known."""
    assert keys_of((5, 6, 7), 1) == ((5 << 64) | 6, (6 << 64) | 7)
    assert keys_of((5,), 1) == keys_of((), 1) == ()
    big = (1 << 40, 1 << 33)
    assert [token_of(key, 1) for key in keys_of((*big, 3), 1)] == list(big)
    assert len(set(keys_of((1, 2, 1, 3, 2, 1), 1))) == 4


def test_another_look_ahead_is_refused():
    """02 KEY-4: at load, by an error that says which."""
    with pytest.raises((AssertionError, ValueError), match="2"):
        PrefixCache([], look_ahead=2)


@pytest.mark.parametrize("layout", ["kv", "hybrid"])
def test_a_match_is_safe_for_the_draft_where_the_next_turn_drops_the_last_token(layout):
    """02 KEY-5: the pair that holds the dropped token is never restored (the rig looks at each)."""
    rig = CheckedRig(layout, 1)
    rig.run([1, 2, 3, 4, 5, 6, 7], [20, 21, 22])  # 22 ends the turn, and the client leaves it out
    onward = rig.run([1, 2, 3, 4, 5, 6, 7, 20, 21, 30, 31], [23])
    assert onward.matched == 8  # (20, 21) verifies nine tokens
    rig.run([1, 2, 3, 4, 5, 6, 7, 20, 21, 30, 31, 23, 24])


@each(CASES)
def test_a_difference_breaks_the_match_one_key_earlier_for_pairs(layout, look_ahead):
    """02 KEY-6."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(range(1, 21), [30])
    assert rig.run([*range(1, 11), 50, 51]).matched == 10 - look_ahead


@each(CASES)
def test_every_drawn_token_is_recorded(layout, look_ahead):
    """02 KEY-7: with pairs the last one, never forwarded, gives the key of the token before it."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(range(1, 8), [30, 31, 32])
    (node,) = rig.nodes
    assert node.edge == keys_of((*range(1, 8), 30, 31, 32), look_ahead)[:9]
    assert node.end == rig.offset == 9


def test_text_keys_as_if_there_were_no_media():
    """02 KEY-8: and pairs are made of folds like of tokens."""
    assert effective_tokens([1, 2, 3], ()) == (1, 2, 3)
    item = image(1, 3)
    pairs = keys_of(effective_tokens([1, 9, 9, 2], [item]), 1)
    assert pairs == ((1 << 64) | item.fold, (item.fold << 64) | item.fold, (item.fold << 64) | 2)


@each(CASES)
@pytest.mark.parametrize(
    "other", [image(3, 6, JPEG), image(3, 6, PNG, 448, 448)], ids=["image", "resolution"]
)
def test_another_image_or_resolution_does_not_alias(layout, look_ahead, other):
    """02 KEY-9."""
    rig = CheckedRig(layout, look_ahead)
    prompt = [1, 2, 3, 9, 9, 9, 4, 5, 6, 7, 8]
    rig.run(prompt, media=[image(3, 6)])
    assert rig.run(prompt, media=[other]).matched == 3 - look_ahead
    assert rig.run(prompt, media=[image(3, 6)]).matched == 10
