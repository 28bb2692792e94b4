"""What is left where a request, a switch or an attach breaks off: nothing half done, no leak."""

import itertools

import pytest
import torch

from fixtures.checked_rig import CASES, NEVER, REWINDING, STUBBORN, CheckedRig, each
from fixtures.layer_kinds import RowLayer
from fixtures.prefix_invariants import check_leaks
from forerun.cache.rows import Rows
from forerun.prefix import trie

PROMPT = list(range(100, 147))
OTHER = list(range(300, 320))


@each(CASES)
def test_an_error_leaves_what_was_stored_and_nothing_of_its_own(layout, look_ahead):
    """contract/model law 2: after a broken forward nobody knows what the layers hold."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, [200, 201])
    with pytest.raises(ZeroDivisionError), rig.prefix.begin([*PROMPT, 200, 201, *OTHER]):
        rig.forward([*PROMPT, 200, 201, 1, 2])
        raise ZeroDivisionError
    rig.check()
    assert rig.found([*PROMPT, 200, 201, *OTHER]) == 48
    rig.run([*PROMPT, 200, 201, *OTHER])


OUT_OF_MEMORY = pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])


@OUT_OF_MEMORY
def test_an_error_for_want_of_memory_gives_back_what_is_stored(error):
    """All but the path that is live."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    with pytest.raises(error), rig.prefix.begin(OTHER):
        rig.forward(OTHER[:10])
        raise error
    assert rig.prefix.snapshot_bytes == 0
    rig.check()
    rig.run(PROMPT)


@OUT_OF_MEMORY
def test_an_error_for_want_of_memory_keeps_the_conversation_that_is_live(error):
    """What else is stored makes room first; only then are rows copied out of emptied layers."""
    rig = CheckedRig("hybrid", 1)
    rig.run(OTHER)
    rig.run(PROMPT, [200, 201])
    onward = [*PROMPT, 200, 201, *OTHER]
    with pytest.raises(error), rig.prefix.begin(onward):
        rig.forward(onward[:55])
        raise error
    assert rig.offset == 0
    rig.check()
    assert (rig.found(OTHER), rig.found(onward)) == (0, 48)
    assert rig.run(onward).cached == 48


def failing(error):
    def fail(*_):
        raise error

    return fail


def failing_once(error, then, *, after=0):
    """Raises at the call that follows `after` others."""
    calls = itertools.count()

    def fail(*arguments):
        if next(calls) == after:
            raise error
        return then(*arguments)

    return fail


@OUT_OF_MEMORY
def test_want_of_memory_for_a_stored_conversation_costs_that_and_not_the_request(
    monkeypatch, error
):
    """A switch copies out what it leaves; where it cannot, all that is stored is forgotten."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    with monkeypatch.context() as patch:
        patch.setattr(rig.targets[2].cache, "restore", failing(error("no room")))
        session = rig.prefix.begin(OTHER)
    with session:
        assert session.cached == rig.offset == rig.prefix.snapshot_bytes == 0
        rig.forward(OTHER[:19])
        rig.settle(OTHER)
    rig.check()
    assert rig.run(PROMPT).matched == 0


@OUT_OF_MEMORY
def test_a_cut_for_which_there_is_no_memory_forgets_and_leaks_nothing(monkeypatch, error):
    """SWI-8: halves of owned rows are copies."""
    rig = CheckedRig("kv", 1, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    rig.run(range(300, 360))
    with monkeypatch.context() as patch:
        patch.setattr(rig.targets[1].cache, "split", failing(error("no room")))
        session = rig.prefix.begin([*PROMPT[:20], 1, 2])
    with session:
        assert session.cached == rig.offset == rig.prefix.snapshot_bytes == 0
    rig.check()
    rig.run(PROMPT)


@OUT_OF_MEMORY
def test_what_a_failed_cut_leaves_over_is_not_copied_out_to_be_forgotten(monkeypatch, error):
    """SWI-8, CTR-4: lazy rows without a place are closed; the layers are emptied without a copy."""
    rig = CheckedRig("kv", 1, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    with monkeypatch.context() as patch:
        patch.setattr(rig.targets[1].cache, "split", failing(error("no room")))
        patch.setattr(Rows, "compact", failing(error("no room")))
        session = rig.prefix.begin([*PROMPT[:20], 1, 2])
    with session:
        assert session.cached == rig.offset == rig.prefix.snapshot_bytes == 0
    rig.check()
    rig.run(PROMPT)


@each(CASES)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_captures_that_cannot_be_stored_are_closed(monkeypatch, layout, look_ahead, after):
    """ATT-2, CTR-3: all of them, the one in hand and those not looked at included."""
    rig = CheckedRig(layout, look_ahead)
    cache = rig.targets[1].cache
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        broken = failing_once(ZeroDivisionError("broken"), cache.split, after=after)
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(cache, "split", broken)
            session.attach()
        check_leaks(
            [rig.prefix.root, *rig.nodes], [slot.cache for slot in (*rig.targets, *rig.drafts)]
        )
    rig.check()
    rig.run(PROMPT, [200])


@each(STUBBORN)
def test_a_request_whose_captures_cannot_be_stored_leaves_no_half_filled_node(
    monkeypatch, layout, look_ahead
):
    """02 STR-5: a state without the rows before it would be resumed from."""
    rig = CheckedRig(layout, look_ahead)
    with (
        monkeypatch.context() as patch,
        pytest.raises(ZeroDivisionError),
        rig.prefix.begin(PROMPT) as session,
    ):
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        patch.setattr(rig.targets[1].cache, "split", failing(ZeroDivisionError("broken")))
        session.attach()
    rig.check_drained()
    rig.check()
    rig.run(PROMPT, [200])


@each(STUBBORN)
def test_a_branch_whose_state_cannot_be_stored_keeps_what_goes_on_from_it(
    monkeypatch, layout, look_ahead
):
    """ATT-4, ADV-1: the first split cuts the node out of another conversation's, the next fails."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    one, other = [*PROMPT[:10], *OTHER], [*PROMPT[:10], 1, 2, 3]
    rig.run(one)
    stubborn = next(t for t in rig.targets if not isinstance(t, RowLayer) or t._reach < 10)
    broken = failing_once(ZeroDivisionError("broken"), stubborn.cache.split, after=1)
    with rig.prefix.begin(other) as session:
        rig.forward(other[:12])
        rig.settle(other)
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(stubborn.cache, "split", broken)
            session.attach()
    rig.check()
    assert rig.found(one) == 29
    assert rig.found(other) == 12


def test_a_first_attach_that_breaks_off_at_once_leaves_the_root(monkeypatch):
    """02 STR-1."""
    rig = CheckedRig("hybrid", 1)
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(trie, "grow", failing(ZeroDivisionError("broken")))
            session.attach()
        assert rig.prefix.path == [rig.prefix.root]
    rig.check()
    assert rig.found(PROMPT) == 46


NO_MEMORY = pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, RuntimeError])


@NO_MEMORY
@pytest.mark.parametrize("layer", [0, 1])
def test_want_of_memory_to_keep_an_answer_does_not_fail_it(monkeypatch, error, layer):
    """CLO-5: nor does it leave a node that lacks a layer's rows to those that follow."""
    rig = CheckedRig("hybrid", 1)
    rig.run(OTHER)
    turn = [*PROMPT, 200, 201, 202]
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        session.attach()
        monkeypatch.setattr(rig.targets[layer].cache, "snapshot", failing(error("no room")))
        session.outputs.append(200)
        rig.forward(PROMPT)
        rig.settle([*PROMPT, 200])
    monkeypatch.undo()
    rig.check()
    rig.run(turn)
    rig.run(OTHER)
    assert rig.run([*turn, 5, 6]).cached >= len(turn) - 8


@NO_MEMORY
def test_want_of_memory_for_captures_costs_them_and_not_the_request(monkeypatch, error):
    """ATT-5: the layers hold what they hold, and the session's end stores it."""
    rig = CheckedRig("hybrid", 1)
    rig.run(OTHER)
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        with monkeypatch.context() as patch:
            patch.setattr(rig.targets[1].cache, "split", failing(error("no room")))
            session.attach()
        assert session.pending == ()
        assert rig.offset == 46
        assert rig.found(OTHER) == 0  # makes room for what follows
    rig.check()
    assert rig.run([*PROMPT, 1, 2]).cached == 46


@NO_MEMORY
def test_want_of_memory_to_cut_at_a_close_costs_what_was_to_be_cut(monkeypatch, error):
    """ADV-2, 02 STR-5: a half without its rows would be found, and could not be restored."""
    rig = CheckedRig("kv", captures=NEVER)
    rig.run(range(10), [20, 21, 22, 23])
    with monkeypatch.context() as patch, rig.prefix.begin(range(10)) as session:
        rig.forward([*range(10), 20])
        session.outputs += [20, 21]
        patch.setattr(rig.targets[0].cache, "split", failing(error("no room")))
    rig.check()
    rig.run([*range(10), 20, 21, 22])


def test_a_switch_that_breaks_off_is_heard_of_and_leaves_layers_level(monkeypatch):
    """02 STR-4: the path ends where the layers stand, whatever went wrong on the way."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    rig.run(OTHER)
    with monkeypatch.context() as patch:
        cache = rig.targets[2].cache
        broken = failing_once(ZeroDivisionError("broken"), cache.restore)
        patch.setattr(cache, "restore", broken)
        with pytest.raises(ZeroDivisionError):
            rig.prefix.begin(PROMPT)
    rig.check()
    rig.run([*PROMPT, 200, 201, 5])


@each(REWINDING)
def test_a_switch_that_broke_off_late_leaves_nobodys_rows_to_the_path_it_left(
    monkeypatch, layout, look_ahead
):
    """02 STR-2: the layers could go back to its length, but hold another conversation by then."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    rig.run(OTHER)
    cache = rig.targets[1].cache
    broken = failing_once(ZeroDivisionError("broken"), cache.restore, after=2)  # rewound, paged in
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(cache, "restore", broken)
        rig.prefix.begin(PROMPT)
    rig.check()
    assert rig.run([*OTHER, 1, 2]).matched == len(OTHER) - 1


def test_a_lost_device_does_not_hide_the_error_that_told_of_it(monkeypatch):
    """Nothing can be restored on it: all is forgotten."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    with (
        monkeypatch.context() as patch,
        pytest.raises(ZeroDivisionError),
        rig.prefix.begin([*PROMPT, 200, 201, *OTHER]),
    ):
        patch.setattr(rig.targets[2].cache, "restore", failing(RuntimeError("lost")))
        raise ZeroDivisionError
    rig.check()
    assert len(rig.prefix.nodes()) == 1
    rig.run(PROMPT)
