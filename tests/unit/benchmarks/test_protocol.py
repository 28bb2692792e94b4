"""The measuring itself: pairing, medians, errors and the near-tie rule."""

import json
import mmap
import os
import subprocess
import sys

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.protocol import (
    Contender,
    Interval,
    MemoryGrowth,
    Quiet,
    agree,
    agreement,
    interleave,
    interval,
    others_seconds,
    ratio,
    relative_error,
    report,
)


def test_rounds_are_interleaved_and_turn_round() -> None:
    order: list[str] = []

    def step(name: str) -> Contender:
        return Contender(name, lambda: float(order.append(name) or len(order)))

    figures = interleave([step("a"), step("b")], rounds=2, warm_up=1)
    assert "".join(order) == "ba" + "ab" + "ba"
    assert figures == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


@given(st.lists(st.floats(1, 100), min_size=1, max_size=15))
def test_the_interval_holds_its_median(figures: list[float]) -> None:
    found = interval(figures, resamples=200)
    assert min(figures) <= found.low <= found.median <= found.high <= max(figures)


def test_a_drift_that_hits_both_cancels_in_the_ratio() -> None:
    drift = [1.0, 2.0, 4.0, 3.0]
    found = ratio([3 * d for d in drift], [2 * d for d in drift])
    assert (found.low, found.median, found.high) == (1.5, 1.5, 1.5)


def test_error_is_relative_to_each_positions_largest_value() -> None:
    want = numpy.array([[1.0, -2.0], [100.0, 0.0]])
    got = want + numpy.array([[0.0, 0.2], [1.0, 0.0]])
    assert relative_error(got, want) == pytest.approx([0.1, 0.01])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch):
    """CPU seconds that others have taken, to be added to."""
    spent = [0.0]
    monkeypatch.setattr("benchmarks.protocol.others_seconds", lambda: spent[0])
    return spent


def test_a_disturbed_run_is_repeated(taken: list[float]) -> None:
    runs: list[float] = []

    def run() -> float:
        runs.append(float(len(runs)))
        taken[0] += 0.2 if len(runs) < 3 else 0.0
        return runs[-1]

    quiet = Quiet(patience_s=60)
    assert quiet(run) == 2.0
    assert (quiet.repeated, quiet.disturbed) == (2, 0)
    figures = interleave([Contender("a", run)], rounds=2, quiet=quiet)
    assert figures == {"a": [4.0, 5.0]}


def test_patience_ends(taken: list[float]) -> None:
    def run() -> float:
        taken[0] += 1.0
        return 7.0

    quiet = Quiet(patience_s=0)
    assert quiet(run) == 7.0
    assert (quiet.repeated, quiet.disturbed) == (0, 1)


def test_what_our_own_children_take_is_not_others() -> None:
    before, start = others_seconds(), os.times()
    command = [sys.executable, "-c", "sum(range(20_000_000))"]
    children = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    assert not any(child.wait() for child in children)
    child = os.times().children_user - start.children_user
    wall = os.times().elapsed - start.elapsed
    rest = (os.cpu_count() or 1) * wall - child
    assert child > 0.1
    assert others_seconds() - before <= rest + 0.1


def test_two_runs_may_part_only_where_the_plain_one_was_undecided() -> None:
    """WID-6: equal, or at the first difference a margin below 1e-3 of the logit scale."""
    margins = [0.5, 0.0005, 0.2]
    assert agreement([1, 2, 3], [1, 2, 3], margins).holds
    assert agreement([1, 2, 3], [1, 9, 9], margins).near_tie
    assert not agreement([1, 2, 3], [1, 2, 9], margins).holds
    assert not agreement([1, 2, 3], [1, 2], margins).holds


def test_near_ties_are_rare_or_the_comparison_fails() -> None:
    """WID-6: more than 1 in 5,000 tokens fails."""
    tie = agreement([1, 2], [1, 3], [1.0, 0.0])
    assert agree([tie])
    assert not agree([tie, tie])
    assert agree([agreement(range(10_000), range(10_000), []), tie, tie])


def test_memory_growth_sees_touched_pages_only() -> None:
    growth = MemoryGrowth()
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        assert growth.bytes() < 1 << 20
        pages[: 8 << 20] = bytes([1]) * (8 << 20)
        assert 7 << 20 < growth.bytes() < 20 << 20  # the bytes that were copied may still be there


def test_the_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    report("How fast?", {"ours": Interval(2.0, 1.5, 2.5)}, rounds=3)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["results"]["ours"] == {"median": 2.0, "low": 1.5, "high": 2.5}
    assert {"machine", "commit", "beside", "rounds", "cores"} <= set(last)
