"""Laws of the suffix index, against looking at every end there is (LKP-2, LKP-3)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.speculation.suffix_index import SuffixIndex

TOKENS = st.integers(0, 2)
# fresh tokens and copies of what stands before, so that long repeats and periods collide
STEPS = st.lists(
    st.one_of(TOKENS.map(lambda token: (token,)), st.tuples(st.integers(0, 60), st.integers(1, 9))),
    max_size=30,
)


def sequence(steps: list[tuple[int, ...]]) -> list[int]:
    tokens: list[int] = []
    for step in steps:
        if len(step) == 1:
            tokens += step
        elif tokens:
            begin = step[0] % len(tokens)
            tokens += tokens[begin : begin + step[1]]
    return tokens


def latest_end(tokens: list[int], shortest: int) -> tuple[int | None, int]:
    """And its length. By brute force: the longest suffix first, its ends from the latest down."""
    for length in range(len(tokens) - 1, shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[len(tokens) - length :]:
                return end, length
    return None, 0


def index_of(tokens: list[int], shortest: int) -> SuffixIndex:
    index = SuffixIndex(shortest)
    index.extend(tokens)
    return index


@settings(max_examples=150)
@given(STEPS, st.integers(1, 4), st.data())
def test_it_finds_the_latest_end_of_the_longest_suffix_whenever_it_is_asked(
    steps: list[tuple[int, ...]], shortest: int, data: st.DataObject
) -> None:
    """LKP-3: the longest suffix, the most recent occurrence on a tie, none that is too short."""
    index, tokens = SuffixIndex(shortest), sequence(steps)
    asked = data.draw(st.sets(st.integers(1, max(1, len(tokens)))))
    for length, token in enumerate(tokens, 1):
        index.extend((token,))
        if length in asked:
            assert (index.earlier(), index.agreeing) == latest_end(tokens[:length], shortest)


@settings(max_examples=100)
@given(STEPS, st.integers(1, 4), st.integers(1, 12))
def test_several_tokens_are_foretold_as_one_after_the_other_are(
    steps: list[tuple[int, ...]], shortest: int, most: int
) -> None:
    """LKP-3: a proposal goes on into its own tokens, as if each had been taken in by then."""
    tokens = sequence(steps)
    foretold = index_of(tokens, shortest).continuation(most)
    assert len(foretold) in (0, most)
    for number in range(most):
        one = index_of(tokens + foretold[:number], shortest).continuation(1)
        assert one == foretold[number : number + 1]


@settings(max_examples=30)
@given(STEPS, st.integers(1, 4))
def test_neither_asking_nor_catching_up_changes_a_later_answer(
    steps: list[tuple[int, ...]], shortest: int
) -> None:
    often = SuffixIndex(shortest)
    often.catch_up()
    for token in sequence(steps):
        often.extend((token,))
        often.catch_up()
        often.earlier()
    assert often.earlier() == index_of(sequence(steps), shortest).earlier()


@pytest.mark.parametrize(
    ("digits", "shortest"),
    [
        ("20202202022002202022022102202022", 1),
        ("01010101010101212102212102220011200022020220200", 2),
    ],
)
def test_a_suffix_that_is_divided_twice(digits: str, shortest: int) -> None:
    """LKP-3: rare among random sequences: what follows a part need not follow what it links to."""
    tokens = [int(digit) for digit in digits]
    index = SuffixIndex(shortest)
    for length, token in enumerate(tokens, 1):
        index.extend((token,))
        assert (index.earlier(), index.agreeing) == latest_end(tokens[:length], shortest)
