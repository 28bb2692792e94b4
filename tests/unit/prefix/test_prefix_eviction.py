"""What goes when the budget is exceeded, and what may not: 02 EVI, 02 STR-7."""

import pytest

from fixtures.checked_rig import CASES, NEVER, REWINDING, STUBBORN, CheckedRig, each
from fixtures.layer_kinds import Rig
from forerun.base.units import GIB
from forerun.prefix import prefix_cache, trie
from forerun.prefix.eviction import EvictionQueue, in_the_way
from forerun.prefix.prefix_cache import MOST_BYTES, PrefixCache
from forerun.prefix.trie import Node

PROMPT = list(range(100, 147))
LONG = list(range(500, 600))


def stories(rig, count=4, length=12):
    """Unrelated conversations, oldest first; all but the last are owned."""
    prompts = [list(range(1000 * i, 1000 * i + length)) for i in range(1, count + 1)]
    for prompt in prompts:
        rig.run(prompt)
    return prompts


@each(CASES)
def test_the_budget_is_of_what_is_stored_and_not_of_what_is_live(layout, look_ahead):
    """02 STR-7: live rows are not in it, however long the conversation; stored ones are."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(LONG)
    live = sum(cache.nbytes() for cache in rig.caches)
    assert rig.prefix.snapshot_bytes < live / 10
    rig.run(range(700, 900))  # every row is overwritten
    assert rig.prefix.snapshot_bytes > live / 2
    rig.prefix.set_budget(live // 4)
    assert rig.prefix.snapshot_bytes <= live // 4


def test_what_nobody_gave_a_budget_has_eight_gib():
    """02 STR-7: a quarter of the device's memory, where that is less, is the caller's to say."""
    assert PrefixCache([]).budget_bytes == MOST_BYTES == 8 * GIB


@each(CASES)
def test_eviction_ends_when_the_budget_holds(layout, look_ahead):
    """EVI-1: no more goes than has to, oldest first."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    prompts = stories(rig)
    whole = rig.prefix.snapshot_bytes
    rig.prefix.set_budget(whole - 1)
    assert [rig.found(prompt) for prompt in prompts] == [0, 11, 11, 11]
    rig.prefix.set_budget(rig.prefix.snapshot_bytes)
    assert [rig.found(prompt) for prompt in prompts] == [0, 11, 11, 11]
    rig.prefix.set_budget(0)
    assert [rig.found(prompt) for prompt in prompts] == [0, 0, 0, 11]
    rig.check()


def test_of_many_nodes_a_few_more_go_at_once(monkeypatch):
    """EVI-1: a 64th of the budget, so that the next requests need not look for any."""
    monkeypatch.setattr(prefix_cache, "_MANY_NODES", 10)
    rig = Rig("kv", captures=NEVER)
    prompts = stories(rig, count=80)
    of_one = rig.prefix.snapshot_bytes // 79
    rig.prefix.set_budget(budget := rig.prefix.snapshot_bytes - 1)
    assert sum(rig.found(prompt) == 0 for prompt in prompts) == 2
    assert rig.prefix.snapshot_bytes <= budget - budget // 64 < rig.prefix.snapshot_bytes + of_one


@each(CASES)
def test_root_frontier_and_branch_points_stay(layout, look_ahead):
    """EVI-2: though the branch point is older than a leaf, and the frontier over the budget."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    branches = [[*PROMPT[:8], *range(first, first + 9)] for first in (50, 60, 70)]
    for branch in (*branches, branches[0] + [1]):
        rig.run(branch)
    shared = 8 - look_ahead
    while rig.found(branches[1]) > shared:
        rig.prefix.set_budget(rig.prefix.snapshot_bytes - 1)
    assert [rig.found(branch) for branch in branches] == [17 - look_ahead, shared, 16]
    (point,) = [node for node in rig.nodes if node.end == shared]
    assert point.last_used < min(child.last_used for child in point.children.values())
    rig.prefix.set_budget(rig.prefix.snapshot_bytes - 1)
    assert [rig.found(branch) for branch in branches] == [17 - look_ahead, shared, shared]
    rig.prefix.set_budget(0)
    assert [rig.found(branch) for branch in branches] == [17 - look_ahead, shared, shared]
    assert rig.prefix.path[-1].end == rig.offset == 17
    rig.check()


@each(STUBBORN)
def test_the_active_path_is_evicted_too(layout, look_ahead):
    """EVI-2: or one long conversation would grow without bound, a state every few tokens."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(LONG)
    assert len(rig.nodes) == 13
    rig.prefix.set_budget(0)
    assert len(rig.nodes) == 1
    rig.check()
    onward = rig.run([*LONG, 1, 2, 3])
    assert onward.cached == 99


def leaf(parent, first, last_used, owned):
    node = trie.grow(parent, (first,))
    node.last_used, node.owned_bytes = last_used, owned
    return node


def root():
    return Node((), 0, None, 0.0, [])


def order(top, frontier=None, frees=lambda _: 1):
    queue, found = EvictionQueue([node for _, node in trie.walk(top)]), []
    while node := queue.next([frontier or top], frees):
        found.append(node)
    return found


def test_the_longest_unused_goes_first():
    """EVI-3: whatever its size."""
    top = root()
    nodes = [leaf(top, i, last_used, owned) for i, last_used, owned in ((1, 3, 9), (2, 1, 1))]
    assert order(top) == nodes[::-1]


def test_of_two_unused_alike_the_deeper_goes_first():
    """EVI-3: a parent is as old as its child where both were made at once."""
    top = root()
    shallow = leaf(top, 1, 1.0, 100)
    deep = trie.grow(top, (2, 3))
    deep.last_used, deep.owned_bytes = 1.0, 1
    assert order(top) == [deep, shallow]
    below = leaf(deep, 4, 1.0, 1)
    assert order(top) == [below, deep, shallow]


def test_of_two_unused_and_deep_alike_the_larger_goes_first():
    """EVI-3."""
    top = root()
    small, large = leaf(top, 1, 1.0, 10), leaf(top, 2, 1.0, 11)
    assert order(top) == [large, small]


def test_what_may_not_go_is_passed_over():
    """EVI-2, EVI-9: frontier, root, branch points, and what would free nothing."""
    top = root()
    branch = leaf(top, 1, 0.0, 100)
    left, right = leaf(branch, 2, 1.0, 0), leaf(branch, 3, 2.0, 5)
    lone = leaf(top, 4, 3.0, 0)
    below = leaf(lone, 5, 4.0, 7)
    assert order(top, frontier=below) == [right, lone]
    assert order(top, frontier=below, frees=lambda _: 0) == [right]
    assert order(top, frontier=right) == [lone, below]
    left.owned_bytes = 1
    assert order(top, frontier=right)[0] is left


def test_a_leaf_that_owns_nothing_is_in_the_way_of_bytes_above_it():
    """EVI-1, EVI-3: and of none that only the frontier owns, or that are not there."""
    top = root()
    stored, live = leaf(top, 1, 0.0, 5), leaf(top, 2, 9.0, 5)
    branch = leaf(stored, 3, 1.0, 0)
    late, early = leaf(branch, 4, 3.0, 0), leaf(branch, 5, 2.0, 0)
    beyond = leaf(live, 6, 1.0, 0)
    leaf(top, 7, 1.0, 0)
    nodes = [node for _, node in trie.walk(top)]
    assert in_the_way(nodes, [live], [live]) is early
    assert in_the_way(nodes, [early], [early]) is beyond
    assert in_the_way(nodes, [beyond], [beyond]) is early
    trie.drop(early)
    nodes.remove(early)
    assert in_the_way(nodes, [live], [live]) is late
    stored.owned_bytes = 0
    assert in_the_way(nodes, [live], [live]) is None


@each(STUBBORN)
def test_an_evicted_leaf_is_gone_and_an_inner_node_becomes_its_child(layout, look_ahead):
    """EVI-4: the later state stays, rows are joined, and the path keeps the merged node."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(LONG)
    oldest, second = (rig.prefix.path[place] for place in (1, 2))
    kept = [held for held in second.snapshots if held.size()]
    rig.prefix.set_budget(rig.prefix.snapshot_bytes - 1)
    assert rig.prefix.path[1] is oldest
    assert (oldest.start, oldest.end) == (0, 16 - look_ahead)
    assert [held for held in oldest.snapshots if held.size()] == kept
    assert [node.end for node in rig.prefix.path[1:]] == rig.ends
    assert len(rig.ends) == 12
    rig.check()


@each(REWINDING)
def test_rows_of_the_active_path_are_joined_without_a_copy(layout, look_ahead):
    """EVI-4: lazy with lazy, and owned with lazy too: nothing is copied out to be joined."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT)
    rig.run(range(700, 900))
    owned = rig.prefix.snapshot_bytes
    rig.run([*PROMPT, *range(200, 220)], [1, 2])  # live again: owned rows, then lazy ones
    _, active = rig.prefix.path
    assert active.owned_bytes == owned
    assert active.end == len(PROMPT) + 21
    assert all(held.start == 0 and held.end == active.end for held in active.snapshots)


@each(CASES)
def test_copies_of_rows_that_are_live_again_go_first(layout, look_ahead):
    """EVI-1: they cost nothing to lose; `check` compares what the reissued snapshots restore."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    rig.run(LONG[:70])
    rig.run([*PROMPT, *range(200, 210), 1, 2, 3])
    before, found = rig.prefix.snapshot_bytes, rig.ends
    rows = 57 * (16 * (2 if layout in {"kv", "hybrid"} else 1) + 24 * look_ahead)
    rig.prefix.set_budget(before - 1)
    assert rig.ends == found
    assert rig.prefix.snapshot_bytes <= before - rows * 9 // 10
    rig.check()
    rig.run(LONG[70:])
    back = rig.run([*PROMPT, *range(200, 210), 1, 2, 3, 4])
    assert back.matched == back.cached == 59


@each(CASES)
def test_lazy_rows_of_a_conversation_that_was_left_protect_nothing(layout, look_ahead):
    """EVI-1: they stand in the live buffers, beyond a shorter conversation, and own no byte."""
    rig = CheckedRig(layout, look_ahead, budget_bytes=0)
    rig.run(PROMPT, [200, 201])
    rig.run([*PROMPT, 200, 201, *range(300, 310)])
    rig.run([*PROMPT[:5], 1, 2, 3])
    frontier = rig.prefix.path[-1]
    assert [node for node in rig.nodes if node.owned_bytes and node is not frontier] == []
    if layout == "kv":
        assert rig.prefix.snapshot_bytes == 0


@each(STUBBORN)
def test_a_lost_checkpoint_is_made_up_for_from_an_earlier_one(layout, look_ahead):
    """EVI-5: at worst from the beginning; never wrongly (the rig compares what is restored)."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(LONG)
    rig.prefix.set_budget(rig.prefix.snapshot_bytes // 3)
    kept = [node.end for node in rig.nodes if all(held is not None for held in node.snapshots)]
    target = max(end for end in kept if end < 90)
    rig.prefix.set_budget(1 << 30)
    back = rig.run([*LONG[:91], 1, 2, 3])
    assert back.matched == 91 - look_ahead
    assert back.cached == target


@each(STUBBORN)
def test_the_budget_holds_after_a_close(layout, look_ahead):
    """EVI-6: page-out stores a state; the path stays valid (`check`) though nodes of it went."""
    rig = CheckedRig(layout, look_ahead, budget_bytes=150)
    said = []
    for turn in range(6):
        said += range(100 * turn + 1, 100 * turn + 12)
        rig.run(said, reply := list(range(100 * turn + 50, 100 * turn + 59)))
        assert rig.prefix.snapshot_bytes <= 150
        assert rig.prefix.path[-1].end == rig.offset == len(said) + 8
        said += reply


@each(REWINDING)
def test_a_copy_out_while_decoding_raises_the_counter(layout, look_ahead):
    """EVI-8: lazy rows count 0 until the write that copies them out."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    assert rig.ends == [48]
    with rig.prefix.begin([*PROMPT[:20], *LONG[:40]]):
        assert rig.prefix.snapshot_bytes == 0
        rig.forward([*PROMPT[:20], *LONG[:20]])
        rig.settle([*PROMPT[:20], *LONG[:21]])
        assert rig.prefix.snapshot_bytes > 0
    rig.check()


@each(REWINDING)
@pytest.mark.parametrize("shared", [0, 20])
def test_a_conversation_larger_than_the_budget_is_not_copied_out_to_be_evicted(
    layout, look_ahead, shared
):
    """EVI-1: the next one's whole prompt would be evaluated beside its copy."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    live = sum(cache.nbytes() for cache in rig.caches)
    rig.prefix.set_budget(live // 8)
    prompt = [*PROMPT[:shared], *LONG[:60]]
    with rig.prefix.begin(prompt):
        rig.forward(prompt[:-1])
        rig.settle(prompt)
        assert rig.prefix.snapshot_bytes <= live // 8
    assert rig.found(PROMPT) == max(shared - look_ahead, 0)
    rig.check()


@each(REWINDING)
def test_a_restored_conversation_makes_room_for_the_one_it_overwrites(layout, look_ahead):
    """EVI-1: before its rows come back, of what is stored the longest unused goes."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    prompts = stories(rig, count=3)
    rig.prefix.set_budget(budget := rig.prefix.snapshot_bytes)  # of two, and the third is live
    peaks, restore = [], rig.targets[-1].cache.restore

    def watched(snapshot, target):
        restored = restore(snapshot, target)
        peaks.append(rig.prefix.snapshot_bytes)
        return restored

    rig.targets[-1].cache.restore = watched
    back = rig.run([*prompts[1], 1, 2])
    assert back.cached == 11
    assert max(peaks) <= budget
    assert [rig.found(prompt) for prompt in prompts] == [0, 12 - look_ahead, 11]


@each(CASES)
@pytest.mark.parametrize("step", [1, 40])
def test_no_step_raises_the_counter(layout, look_ahead, step):
    """EVI-9: a merge that would have to copy out more than it frees is no candidate."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    rig.run(LONG)
    rig.run([*PROMPT[:20], *range(300, 330)])
    rig.run([*PROMPT, *range(200, 210), 1, 2, 3])
    counter = rig.prefix.snapshot_bytes
    while counter > 0:
        rig.prefix.set_budget(max(0, counter - step))
        if rig.prefix.snapshot_bytes == counter:
            break
        assert rig.prefix.snapshot_bytes < counter
        counter = rig.prefix.snapshot_bytes
    rig.check()
    assert rig.run([*PROMPT, *range(200, 210), 1, 2, 3, 4]).cached == 59
