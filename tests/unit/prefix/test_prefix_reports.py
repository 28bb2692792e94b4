"""What users of such caches reported, as tests: rows B01 to B17, A21 and G09 of the reports."""

import random

import pytest

from fixtures.checked_rig import CASES, STUBBORN, CheckedRig, each
from fixtures.layer_kinds import Rig
from forerun.prefix.captures import CaptureRule

PROMPT = list(range(100, 147))


@each(CASES)
def test_a_second_turn_reuses_the_first(layout, look_ahead):
    """reports B01: windows and states too, where requests are purely appended to."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 230))
    turn = rig.run([*PROMPT, *range(200, 230), *range(300, 310)])
    assert turn.cached == turn.matched == len(PROMPT) + 29


@each(CASES)
def test_what_is_restored_is_not_rounded_down_to_the_grid(layout, look_ahead):
    """reports B03: after a prompt of 2.5 strides, the same and 20 tokens more."""
    rig = CheckedRig(layout, look_ahead, captures=CaptureRule(interval=40, before_end=4))
    prompt = list(range(1000, 1100))
    rig.run(prompt, range(200, 210))
    more = rig.run([*prompt, *range(300, 320)])
    assert more.matched == 100 - look_ahead
    assert more.matched - more.cached <= 4
    answered = rig.run([*prompt, *range(200, 210), *range(300, 310)])
    assert answered.cached == answered.matched == 109


@each(CASES)
def test_every_restore_point_covers_what_it_claims(layout, look_ahead):
    """reports B05: A+B, A resumed, A+C cancelled in C, then A+B+D and A+C+D."""
    a, b, c, d = (list(range(first, first + 30)) for first in (1000, 2000, 3000, 4000))
    rig = CheckedRig(layout, look_ahead)
    rig.run([*a, *b], [1, 2])
    rig.run(a)
    rig.run([*a, *c], chunk=7, cancel_after=3)
    bound = 8 + 4 + look_ahead
    back = rig.run([*a, *b, *d])
    assert back.matched - back.cached <= bound
    other = rig.run([*a, *c, *d])
    assert other.matched - other.cached <= bound
    assert other.cached >= 30


@each([("kv", 1), ("sliding", 0), ("recurrent", 1), ("hybrid", 0)])
def test_memory_is_flat_once_the_budget_is_reached(layout, look_ahead):
    """reports B09: 200 requests of one prefix with random tails; clearing gives all of it back."""
    budget, draw = 20_000, random.Random(5)
    rig = Rig(layout, look_ahead, budget_bytes=budget)
    prefix, bytes_, nodes = list(range(1000, 1050)), [], []
    for _ in range(200):
        tail = [draw.randrange(100) for _ in range(12)]
        found = rig.run([*prefix, *tail], [draw.randrange(100) for _ in range(6)])
        bytes_.append(rig.prefix.snapshot_bytes)
        nodes.append(len(rig.prefix.nodes()))
        assert len(bytes_) < 3 or found.cached >= 48
    assert max(bytes_) <= budget
    assert min(bytes_[100:]) > 0.8 * budget
    assert max(nodes[100:]) <= 1.2 * max(nodes[50:100])
    rig.check_released()


@each(CASES)
def test_a_history_without_its_thinking_is_reused_up_to_the_first_difference(layout, look_ahead):
    """reports B13: the client sends the answer back without reasoning; with it, all is reused."""
    rig = CheckedRig(layout, look_ahead)
    thinking, answer = list(range(2000, 2020)), list(range(3000, 3010))
    rig.run(PROMPT, [*thinking, *answer])
    bare = rig.run([*PROMPT, *answer, *range(4000, 4010)], [*thinking, 5, 6])
    assert bare.matched == len(PROMPT) - look_ahead
    assert bare.matched - bare.cached <= 4
    again = rig.run([*PROMPT, *answer, *range(4000, 4010), 5, 6, *range(5000, 5010)])
    assert again.matched - again.cached <= 4
    rig.run(PROMPT, [*thinking, *answer])
    whole = rig.run([*PROMPT, *thinking, *answer, *range(4000, 4010)])
    assert whole.matched == whole.cached == len(PROMPT) + 29


@each(STUBBORN)
@pytest.mark.parametrize("length", [18, 300, 2500])
@pytest.mark.parametrize("chunk", [256, 512])
def test_a_chunked_prefill_captures_what_a_whole_one_does(layout, look_ahead, length, chunk):
    """reports B15: with the stride that is used, and prompts shorter and longer than a chunk."""
    rig = Rig(layout, look_ahead, captures=CaptureRule())
    prompt = list(range(1000, 1000 + length))
    rig.run(prompt, [1, 2, 3], chunk=chunk)
    again = rig.run(prompt, [1, 2, 3], chunk=chunk)
    assert again.cached == length - 4 - look_ahead


@each(CASES)
def test_prompts_that_differ_in_their_last_words_share_the_rest(layout, look_ahead):
    """reports B17: from the third request on, where a time stamp ends each of them."""
    rig = CheckedRig(layout, look_ahead, captures=CaptureRule())
    shared = list(range(1000, 1400))
    found = [rig.run([*shared, *range(stamp, stamp + 12)], [1, 2]) for stamp in (10, 30, 50)]
    assert found[2].cached == found[2].matched == 400 - look_ahead


@each(CASES)
def test_evicting_all_between_the_turns_changes_no_row(layout, look_ahead):
    """reports A21: a draft's rows never go without its offset. The rig compares each of them."""
    rig = CheckedRig(layout, look_ahead)
    said = []
    for turn in range(4):
        said += range(100 * turn + 1, 100 * turn + 12)
        found = rig.run(said, reply := list(range(100 * turn + 50, 100 * turn + 59)))
        assert found.cached == (len(said) - 12 if turn else 0)
        rig.prefix.set_budget(0)
        rig.check()
        rig.prefix.set_budget(1 << 30)
        said += reply
    rig.prefix.clear()
    assert rig.run(said).cached == 0


@each(CASES)
def test_evicting_all_during_a_turn_changes_no_row(layout, look_ahead):
    """reports A21."""
    rig = CheckedRig(layout, look_ahead)

    def evict():
        rig.prefix.set_budget(0)
        rig.prefix.set_budget(1 << 30)

    said = []
    for turn in range(4):
        kept = said[: len(said) - 3] if turn == 2 else said
        said = [*kept, *range(100 * turn + 1, 100 * turn + 12)]
        reply = list(range(100 * turn + 50, 100 * turn + 59))
        found = rig.run(said, reply, during=evict)
        if turn in (1, 3):
            assert found.cached == found.matched == len(said) - 12
        said += reply


@each(CASES)
def test_a_request_is_weighed_by_all_of_its_tokens(layout, look_ahead):
    """reports G09: live memory is that of the whole span, what was restored of it included."""
    rig = Rig(layout, look_ahead, captures=CaptureRule())
    prompt = list(range(1000, 1400))
    rig.run(prompt)
    rig.run(range(2000, 2450))
    with rig.prefix.begin([*prompt, *range(20)]) as session:
        assert session.cached == 399
        rig.forward([*prompt, *range(19)])
        rig.settle([*prompt, *range(20)])
        row = rig.targets[0].cache if layout != "hybrid" else rig.targets[1].cache
        assert row.offset == 419
        assert row.nbytes() == 419 * 16
