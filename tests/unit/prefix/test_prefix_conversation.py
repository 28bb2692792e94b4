"""A long conversation within a small budget, over every kind of layer: scenario 14, EVI-7."""

import pytest

from fixtures.checked_rig import CASES, CheckedRig, each
from fixtures.layer_kinds import Rig

TURNS = 50


def turns(keep):
    """Prompts and replies of a chat whose client sends back `keep` tokens of each reply."""
    said = []
    for turn in range(TURNS):
        reply = list(range(100 * turn + 50, 100 * turn + 59))
        yield [*said, *range(100 * turn + 1, 100 * turn + 8)], reply
        said = [*said, *range(100 * turn + 1, 100 * turn + 8), *reply[:keep]]


def shared(one, other):
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)


@each(CASES)
@pytest.mark.parametrize("keep", [9, 3, 0], ids=["all", "some", "none"])
def test_scenario_14_fifty_turns_within_a_small_budget(layout, look_ahead, keep):
    """02 scenario 14: EVI-5, EVI-7. Bytes and nodes are bounded, checkpoints of old turns go, and
    each turn reuses what it shares with the one before, less at most eight tokens.
    """
    budget = 600
    rig = Rig(layout, look_ahead, budget_bytes=budget)
    counted, nodes, before = [], [], []
    for prompt, reply in turns(keep):
        found = rig.run(prompt, reply)
        assert shared(before, prompt) - found.cached <= 8
        if keep == len(reply) and before:
            assert found.cached == found.matched == len(before) - 1
        counted.append(rig.prefix.snapshot_bytes)
        nodes.append(len(rig.prefix.nodes()))
        before = [*prompt, *reply]
    assert max(counted) <= budget
    if layout != "kv":  # whose rows, all of them live, cost the budget nothing
        assert keep < 9 or min(counted[25:]) > budget // 2
        assert max(nodes[25:]) <= max(nodes[:25])
        early = rig.run([*before[:40], 1, 2, 3])
        assert early.cached == 0
        assert early.pending
    rig.check_released()


@each(CASES)
def test_a_conversation_outlives_others_within_the_budget(layout, look_ahead):
    """EVI-3: the one that is spoken with stays, those longest unused go."""
    row_bytes = 16 * (2 if layout in {"kv", "hybrid"} else 1) + 24 * look_ahead
    budget = 300 * row_bytes
    rig = CheckedRig(layout, look_ahead, budget_bytes=budget)
    before = []
    for number, (prompt, reply) in zip(range(16), turns(9), strict=False):
        found = rig.run(prompt, reply)
        assert found.cached == max(0, len(before) - 1)
        rig.run(range(10_000 + 100 * number, 10_020 + 100 * number), [1, 2, 3])
        before = [*prompt, *reply]
    assert rig.prefix.snapshot_bytes <= budget
    assert rig.found(range(10_000, 10_020)) == 0
