"""Where a request starts, and how the caches get there: 02 BEG, SWI."""

import logging

import pytest
import torch

from fixtures.checked_rig import CASES, NEVER, REWINDING, STUBBORN, CheckedRig, each
from fixtures.layer_kinds import CONTEXT, CPU, RecurrentLayer, Rig, RowLayer
from forerun.cache.kv import KVCache
from forerun.cache.rows import RowShape
from forerun.prefix import trie
from forerun.prefix.layers import Layers
from forerun.prefix.prefix_cache import PrefixCache
from forerun.prefix.storage import Storage

PROMPT = list(range(100, 147))
OTHER = list(range(300, 320))


@pytest.fixture
def lines(caplog):
    """What `begin` logs, a line a request."""
    logger = logging.getLogger("forerun.prefix")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG, "forerun.prefix")
    yield lambda: list(dict.fromkeys(record.getMessage() for record in caplog.records))
    logger.removeHandler(caplog.handler)


def snapshots(rig):
    """All that is stored, by identity."""
    return {id(held) for node in rig.nodes for held in node.snapshots if held is not None}


@each(CASES)
def test_what_matched_is_told_though_it_cannot_be_restored(layout, look_ahead):
    """BEG-1: the count of the walk, before anything is pulled back."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    assert rig.run([*PROMPT[:30], 1, 2]).matched == 30 - look_ahead
    repeat = rig.run(PROMPT)
    assert repeat.matched == 47 - look_ahead


@each(CASES)
def test_an_exact_repeat_evaluates_one_token(layout, look_ahead):
    """BEG-2: it seeds decoding. Nothing had been drawn, so all layers rest there."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT)
    repeat = rig.run(PROMPT)
    assert (repeat.cached, repeat.remaining) == (46, 1)
    assert rig.run(PROMPT[:1]).remaining == 1


@each(CASES)
def test_a_prompt_of_which_all_is_stored_keeps_one_token_to_evaluate(layout, look_ahead):
    """BEG-2, BEG-4: also where the stored sequence goes on, and where the prompt is one token."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    for length in (30, 2, 1):
        found = rig.run(PROMPT[:length])
        assert found.matched == length - look_ahead
        assert found.cached <= length - 1


@each(STUBBORN)
def test_where_the_match_ended_is_captured_for_the_next_request(layout, look_ahead):
    """BEG-5: unless the caches stand there already. Not a user capture."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    first = rig.run([*PROMPT[:30], 1, 2, 3])
    assert [(it.offset, it.user) for it in first.pending] == [(30 - look_ahead, False)]
    assert rig.run([*PROMPT[:30], 4, 5, 6]).pending == ()


def test_each_request_logs_one_line(lines):
    """BEG-6: hit or miss, total, matched as at first, cached and left."""
    rig = Rig("hybrid", 1, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    rig.run([*PROMPT[:30], 1, 2, 3])
    rig.run([*PROMPT, 200, 201, 5])
    assert lines() == [
        "miss total=47 matched=0 cached=0 left=47",
        "miss total=33 matched=29 cached=0 left=33",
        "hit total=50 matched=48 cached=48 left=2",
    ]


@each(CASES)
def test_a_switch_rewinds_to_the_common_ancestor(layout, look_ahead):
    """SWI-1: though more tokens match, since what is live beyond it is another branch."""
    rig = CheckedRig(layout, look_ahead)
    branches = [[*PROMPT[:16], *OTHER], [*PROMPT[:16], *range(400, 430)]]
    for branch in branches:
        rig.run(branch)
    for branch in [*branches, *branches]:
        branch += [1, 2, 3]
        back = rig.run(branch)
        assert back.matched == back.cached == len(branch) - 4


@each(STUBBORN)
def test_a_layer_that_cannot_rewind_is_freed_and_what_was_lazy_outlives_it(layout, look_ahead):
    """SWI-2: the conversation that was live is whole when it comes back."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    with rig.prefix.begin(OTHER) as session:
        assert session.cached == rig.offset == 0
    back = rig.run([*PROMPT, *range(200, 210), 5])
    assert back.matched == back.cached == 56


@each(STUBBORN)
def test_pages_come_in_from_the_root(layout, look_ahead):
    """SWI-3: a freed layer needs the shared part too, while others stand beyond it already."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    rig.run([*PROMPT[:24], *OTHER])
    back = rig.run([*PROMPT, *range(200, 210), 5])
    assert back.matched == back.cached == 56
    rig.run(OTHER)
    back = rig.run([*PROMPT[:24], *OTHER, 5])
    assert back.matched == back.cached == 43


def paged(layer):
    """The snapshots that a layer is asked to restore from now on."""
    asked, restore = [], layer.cache.restore
    layer.cache.restore = lambda snapshot, target: (
        asked.append(snapshot) if snapshot is not None else None,
        restore(snapshot, target),
    )[1]
    return asked


@each(CASES)
def test_a_layer_that_is_there_already_takes_no_page(layout, look_ahead):
    """SWI-3: a turn that goes on where the last one ended moves nothing."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, [200, 201])
    rig.run(range(300, 360))
    rig.run([*PROMPT, 200, 201, 5, 6])  # from owned pages
    asked = [paged(layer) for layer in (*rig.targets, *rig.drafts)]
    assert rig.run([*PROMPT, 200, 201, 5, 6, 7, 8]).cached == 50
    assert not any(asked)


class Brittle(KVCache):
    """A layer that refuses every snapshot of another buffer."""

    def restore(self, snapshot, target):
        return snapshot is None and super().restore(None, target)


def test_the_first_refused_page_ends_page_in():
    """SWI-3: what is behind it would not join what is before."""
    shape = RowShape(1, 1, 1, torch.float64, CPU)
    brittle, after = Brittle(shape, CONTEXT), RowLayer("kv")
    prefix = PrefixCache([brittle, after.cache], captures=NEVER)
    fed = RowLayer("kv")
    fed.cache = brittle
    with prefix.begin(PROMPT):
        for layer in (fed, after):
            layer.feed(PROMPT[:46])
    with prefix.begin(OTHER):
        for layer in (fed, after):
            layer.feed(OTHER[:19])
    asked = paged(after)
    with prefix.begin(PROMPT) as session:
        assert session.cached == after.cache.offset == 0
        assert asked == []


@each(STUBBORN)
def test_a_whole_state_is_taken_only_from_a_node_that_the_match_covers(layout, look_ahead):
    """SWI-4: states at 8, 16, ... of which the last one before the difference serves."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    found = rig.run([*PROMPT[:23], 1, 2, 3])
    assert found.matched == 23 - look_ahead
    assert found.cached == 16 - look_ahead


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_a_window_goes_back_to_where_a_state_is(look_ahead):
    """SWI-5: further than it rewinds, from what the checkpoint's node holds of it."""
    rig = CheckedRig(["kv", "sliding", "recurrent"], look_ahead)
    rig.run(PROMPT, range(200, 210))
    found = rig.run([*PROMPT, *range(200, 208 + look_ahead), 1, 2])
    assert found.matched == 55
    assert found.cached == 43 - look_ahead


def test_where_a_checkpoint_lacks_a_layer_the_one_before_it_serves_all():
    """SWI-5: both nodes hold the recurrent state, only the first the window's."""
    slots = RowLayer("kv"), RowLayer("sliding"), RecurrentLayer()
    layers = Layers([slot.cache for slot in slots])
    store, path = Storage(layers, 0.0), []
    path.append(store.root)
    for end in (8, 16, 24):
        for slot in slots:
            slot.feed(PROMPT[end - 8 : end])
        path.append(trie.grow(path[-1], tuple(PROMPT[end - 8 : end])))
        store.page_out(path[-1])
    _, _, second, _ = path
    second.snapshots[1].close()
    second.snapshots[1] = None
    assert slots[2].cache.restore(second.snapshots[2], 16)
    layers.align(path, layers.offset)
    assert all(slot.holds(PROMPT[:8]) for slot in slots)


def test_layers_that_cannot_be_levelled_are_emptied():
    """SWI-5: they never rest at different offsets. No real pair of layers comes to this."""
    recurrent = RecurrentLayer()
    rows = RowLayer("kv")
    rows.cache = Brittle(RowShape(1, 1, 1, torch.float64, CPU), CONTEXT)
    prefix = PrefixCache([recurrent.cache, rows.cache], captures=NEVER)

    def request(tokens):
        with prefix.begin(tokens) as session:
            for layer in (recurrent, rows):
                layer.feed(tokens[session.cached : -1])
        return session.cached

    for tokens in (PROMPT, OTHER):
        assert request(tokens) == 0
    assert request([*PROMPT[:46], 1, 2]) == 0
    assert recurrent.holds([*PROMPT[:46], 1])
    assert rows.holds([*PROMPT[:46], 1])


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_a_window_without_a_checkpoint_to_go_back_to_is_emptied_in_silence(look_ahead):
    """SWI-5: to hold nothing is an offset that every layer reaches."""
    rig = CheckedRig(["kv", "sliding", "recurrent"], look_ahead, captures=NEVER)
    rig.run(PROMPT, range(200, 210))
    found = rig.run([*PROMPT, *range(200, 208 + look_ahead), 1, 2])
    assert (found.matched, found.cached) == (55, 0)
    assert [it.offset for it in found.pending] == [55]


@each(CASES)
def test_a_switch_captures_nothing(layout, look_ahead):
    """SWI-6: what is stored was stored at the close; a switch may only split it."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    before = snapshots(rig)
    with rig.prefix.begin(OTHER):
        assert snapshots(rig) == before
    with rig.prefix.begin([*PROMPT, *range(200, 210), 5]):
        assert snapshots(rig) == before


@each(CASES)
def test_nodes_beyond_the_common_offset_leave_the_path(layout, look_ahead):
    """SWI-7."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    with rig.prefix.begin([*PROMPT[:20], 1, 2]) as session:
        ends = [node.end for node in rig.prefix.path]
        assert ends == sorted(end for end in {0, *rig.ends} if end <= session.cached)
        assert ends[-1] == session.cached


@each(REWINDING)
def test_an_edge_in_which_the_caches_come_to_rest_is_split_there(layout, look_ahead):
    """SWI-8: the head becomes the frontier, the tail stays an ordinary child."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    with rig.prefix.begin([*PROMPT[:20], 1, 2]):
        head = rig.prefix.path[-1]
        (tail,) = head.children.values()
        assert (head.start, head.end) == (0, 20 - look_ahead)
        assert (tail.start, tail.end) == (20 - look_ahead, 48)
        assert [(held.start, held.end) for held in tail.snapshots] == [
            (tail.start, tail.end)
        ] * len(tail.snapshots)


def test_the_head_of_a_split_holds_no_window():
    """SWI-8, ADV-2: a window's state stays at the end it is the state of."""
    rig = CheckedRig("sliding", captures=NEVER)
    rig.run(PROMPT[:4], [200, 201])  # so short that the window can still rewind
    with rig.prefix.begin([*PROMPT[:3], 1, 2]) as session:
        assert session.cached == 3
        head = rig.prefix.path[-1]
        rows, window = head.snapshots
        assert (rows.start, rows.end) == (0, 3)
        assert window is None
        assert head.children[PROMPT[3]].snapshots[1].end == 5
    assert head.snapshots[1] is None  # CLO-4: a close at the frontier records nothing


@each(CASES)
def test_only_the_frontier_counts_as_used(layout, look_ahead):
    """SWI-9: whatever a switch walks through keeps its age."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    rig.run(OTHER)
    ages = {id(node): node.last_used for node in rig.nodes}
    latest = max(ages.values())
    with rig.prefix.begin([*PROMPT, *range(200, 210), 5]):
        used = [node for node in rig.nodes if node.last_used > latest]
        assert used == [rig.prefix.path[-1]]
        assert all(node.last_used == ages[id(node)] for node in rig.nodes if node not in used)


@each(STUBBORN)
def test_the_budget_holds_when_a_switch_is_over(layout, look_ahead):
    """SWI-10, EVI-6: freeing layers copies out what was lazy, at the cost of what is oldest."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, range(200, 210))
    rig.prefix.set_budget(1)
    for layer in (*rig.targets, *rig.drafts):
        layer.cache.free()  # as of layers that cannot rewind
    assert rig.prefix.snapshot_bytes > 1
    with rig.prefix.begin(OTHER):
        assert rig.prefix.snapshot_bytes == 0
        assert rig.nodes == []


@each(CASES)
def test_clearing_forgets_what_is_stored_and_what_is_live(layout, look_ahead):
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, [200, 201])
    rig.run(OTHER)
    rig.check_released()
    assert rig.run(PROMPT).matched == 0
