"""What the trie looks like from outside."""

import pytest

from fixtures.checked_rig import NEVER, CheckedRig
from fixtures.layer_kinds import Rig
from forerun.prefix.keys import MediaRange, fold

PROMPT = list(range(100, 147))


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_a_node_shows_its_first_tokens_and_a_media_range_its_fold(look_ahead):
    rig = Rig("kv", look_ahead, captures=NEVER)
    image = MediaRange(2, 5, fold(b"image", (8, 8)), causal=False)
    rig.run([1, 2, 9, 9, 9, *range(10, 40)], media=[image])
    root, node = rig.prefix.nodes()
    assert root.first_tokens == ()
    assert node.first_tokens[:7] == (1, 2, *[image.fold] * 3, 10, 11)


@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize(("keys", "whole"), [(1, True), (48, True), (49, False), (200, False)])
def test_of_a_long_edge_both_ends_are_shown(look_ahead, keys, whole):
    rig = Rig("kv", look_ahead, captures=NEVER)
    rig.run(range(1000, 1000 + keys + 1))
    _, node = rig.prefix.nodes()
    tokens = tuple(range(1000, 1000 + keys))
    assert node.end == keys
    assert node.first_tokens == (tokens if whole else tokens[:24])
    assert node.last_tokens == (() if whole else tokens[-24:])


def test_rows_are_lazy_until_they_are_copied_out():
    rig = CheckedRig("kv", 1, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    root, node = rig.prefix.nodes()
    assert (root.lazy, node.lazy, node.owned_bytes) == (False, True, 0)
    rig.run(range(300, 360))
    stored = next(fact for fact in rig.prefix.nodes() if fact.end == 48)
    assert not stored.lazy
    assert stored.owned_bytes == rig.prefix.snapshot_bytes == 48 * 56


def test_a_state_is_owned_from_the_start():
    rig = CheckedRig("hybrid", captures=NEVER)
    rig.run(PROMPT)
    _, node = rig.prefix.nodes()
    assert node.owned_bytes == rig.prefix.snapshot_bytes > 0
    assert node.complete


def test_depth_path_and_age_are_told():
    now = [10.0]
    rig = Rig("kv", captures=NEVER, clock=lambda: now[0])
    rig.run(PROMPT)
    now[0] = 15.0
    rig.run([*PROMPT[:20], 1, 2, 3])
    now[0] = 17.0
    root, head, tail, branch = rig.prefix.nodes()
    assert [fact.depth for fact in (root, head, tail, branch)] == [0, 1, 2, 2]
    assert [(fact.start, fact.end) for fact in (head, tail, branch)] == [
        (0, 20),
        (20, 46),
        (20, 22),
    ]
    assert [fact.active for fact in (root, head, tail, branch)] == [True, True, False, True]
    assert [fact.frontier for fact in (root, head, tail, branch)] == [False, False, False, True]
    assert (tail.age_s, branch.age_s) == (7.0, 2.0)
