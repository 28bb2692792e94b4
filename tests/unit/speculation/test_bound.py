"""Which drafters may be bound together, and what they are asked through (DRF-8)."""

import pytest

from fixtures.noted_drafter import NotedDrafter
from fixtures.scripted_drafter import ScriptedDrafter
from forerun.base.errors import RequestError
from forerun.speculation.bound import BoundDrafters
from forerun.speculation.drafters.lookup import LookupDrafter


def scripted(name: str = "lookup") -> ScriptedDrafter:
    return ScriptedDrafter(lambda *_: (), name=name)


def test_one_drafter_at_most_owns_caches() -> None:
    """DRF-8: the prefix cache has one draft's layers beside the target's."""
    other = NotedDrafter()
    other.name = "other"
    with pytest.raises(AssertionError, match=r"\['model', 'other'\] own caches"):
        BoundDrafters.of(NotedDrafter(), other)


def test_drafters_have_names_of_their_own() -> None:
    """DRF-8: a name chooses one of them."""
    with pytest.raises(AssertionError, match="two drafters are called lookup"):
        BoundDrafters.of(scripted(), LookupDrafter())


def test_auto_is_all_that_are_bound() -> None:
    """DRF-8, as decision 0019 changes it: they take turns."""
    primary, lookup = scripted("model"), LookupDrafter()
    both, alone = BoundDrafters.of(primary, lookup), BoundDrafters.of(lookup=lookup)
    wanted = ("auto", "model", "lookup", "off")
    assert [both.chosen(name) for name in wanted] == [
        (primary, lookup),
        (primary,),
        (lookup,),
        (),
    ]
    assert alone.chosen("auto") == (lookup,)
    assert BoundDrafters.of().chosen("auto") == ()
    with pytest.raises(RequestError, match="this model offers auto, lookup, off"):
        alone.chosen("model")


def test_a_drafters_own_limit_reaches_its_controller() -> None:
    """DRF-1, DEP-1: it is never asked for more."""
    limited = scripted("model")
    limited.draft_limit = 2
    controllers = BoundDrafters.of(limited, scripted()).controllers
    for (controller,) in controllers.values():
        for _ in range(20):
            controller.outcome(3, 3)
            for depth in range(4):
                controller.cost(depth, 10.0)
    assert {name: each.next() for name, (each,) in controllers.items()} == {"model": 2, "lookup": 4}


def test_pairs_are_stored_where_the_owner_of_caches_looks_ahead() -> None:
    """02 KEY-4: else the keys of the prefix cache are single tokens."""
    assert BoundDrafters.of(NotedDrafter()).look_ahead == 0
    ahead = NotedDrafter()
    ahead.look_ahead = 1
    assert BoundDrafters.of(ahead, LookupDrafter()).look_ahead == 1
    assert BoundDrafters.of(lookup=LookupDrafter()).look_ahead == 0


def test_grades_share_what_rounds_cost_and_nothing_else() -> None:
    """DEP-2, DEP-11, decision 0019."""
    lookup = LookupDrafter()
    grades = BoundDrafters.of(lookup=lookup).controllers["lookup"]
    assert len(grades) == lookup.grades
    grades[0].cost(3, 14.0)
    for _ in range(10):
        grades[0].outcome(1, 1)
    assert [each.report().costs for each in grades] == [{3: 14.0}] * lookup.grades
    assert [each.report().rates for each in grades[1:]] == [()] * (lookup.grades - 1)
