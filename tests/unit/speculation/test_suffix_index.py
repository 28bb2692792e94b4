"""The work that a suffix index does, counted, not timed (LKP-2)."""

from collections.abc import Sequence
from typing import Any

import pytest

from forerun.speculation.suffix_index import SuffixIndex


class Counted(list[int]):
    """Counts how often an item is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


def fibonacci(count: int) -> list[int]:
    """Repeats itself all the time, and is not periodic."""
    before, last = [0], [0, 1]
    while len(last) < count:
        before, last = last, last + before
    return last[:count]


LENGTH = 4000
NOISE = [number * 2654435761 >> 15 & 1 for number in range(LENGTH)]


@pytest.mark.parametrize(
    ("tokens", "a_token"), [([1] * LENGTH, 1), ([1, 2, 3, 1] * 1000, 1), (fibonacci(LENGTH), 4)]
)
def test_in_a_text_that_repeats_itself_few_ends_are_entered(
    tokens: Sequence[int], a_token: int
) -> None:
    """LKP-2: a link of a period leads through all the text before it, and is not followed."""
    assert looks(tokens) <= a_token * LENGTH


def test_noise_costs_a_few_entries_a_token() -> None:
    """LKP-2: as many as there are suffixes that occurred, about the logarithm of the length."""
    assert looks(NOISE) <= 12 * LENGTH


def test_who_has_caught_up_answers_at_once() -> None:
    """DEP-3: the first round after a long prompt takes no longer than the others."""
    index = SuffixIndex(3)
    index.extend(NOISE)
    index.catch_up()
    index._latest = counted = Counted(index._latest)
    index.earlier()
    assert counted.looks == 1


def looks(tokens: Sequence[int]) -> int:
    """How often a latest end is looked at if the index is asked at every token."""
    index = SuffixIndex(3)
    index._latest = counted = Counted(index._latest)
    for token in tokens:
        index.extend((token,))
        index.earlier()
    return counted.looks
