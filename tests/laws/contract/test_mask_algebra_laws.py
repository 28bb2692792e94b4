"""The mask algebra against sets of (row, query, key) that are visible."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.contract.mask import CAUSAL, NONE, Mask, Rect, intersect, relax, visible

ROWS, QUERIES, KEYS = 2, 3, 6
STARTS = (1, 3)  # position of each row's first query


def positions():
    return torch.tensor(STARTS)[:, None] + torch.arange(QUERIES)


def rects():
    position = st.integers(0, KEYS)
    return st.builds(Rect, st.integers(0, ROWS - 1), position, position, position, position)


@st.composite
def masks(draw):
    causal = draw(st.booleans())
    mask = CAUSAL if causal else NONE
    if causal:
        mask = relax(mask, draw(st.lists(rects(), max_size=3)))
    if draw(st.booleans()):
        shape = (draw(st.sampled_from((1, ROWS))), 1, QUERIES, KEYS)
        bits = draw(st.lists(st.booleans(), min_size=36, max_size=36))
        size = shape[0] * QUERIES * KEYS
        tensor = torch.tensor(bits[:size]).view(shape)
        mask = Mask(mask.causal, mask.rects, tensor)
    return mask


def pairs(mask, columns=range(KEYS)):
    """The visible triples, one by one, as MSK-4 orders them."""
    seen = set()
    for row in range(ROWS):
        for query in range(QUERIES):
            for key in columns:
                at = STARTS[row] + query
                allowed = not mask.causal or key <= at
                for rect in mask.rects:
                    inside = rect.query_low <= at < rect.query_high
                    if rect.row == row and inside and rect.key_low <= key < rect.key_high:
                        allowed = True
                if mask.tensor is not None:
                    tensor_row = row if mask.tensor.shape[0] > 1 else 0
                    allowed = allowed and bool(mask.tensor[tensor_row, 0, query, key])
                if allowed:
                    seen.add((row, query, key))
    return seen


def laid(mask, columns=range(KEYS)):
    held = torch.tensor(list(columns), dtype=torch.int64)
    seen = visible(mask, positions(), held[None]).expand(ROWS, 1, QUERIES, -1)
    return {(row, query, int(held[key])) for row, _, query, key in seen.nonzero().tolist()}


@given(masks())
def test_a_mask_laid_over_columns_shows_its_pairs(mask):
    """MSK-1, MSK-4: causality, then rectangles, then the tensor."""
    assert laid(mask) == pairs(mask)


@given(masks(), st.permutations(range(KEYS)), st.integers(1, KEYS))
def test_columns_may_hold_positions_in_any_order(mask, order, count):
    """RAP-2: a tensor mask is gathered by the position that a column holds."""
    assert laid(mask, order[:count]) == pairs(mask, order[:count])


@given(masks(), masks(), masks())
def test_intersection_is_and(one, other, third):
    """MSK-3: and so it is commutative and associative, with the mask of nothing as identity."""
    both = intersect(one, other)
    assert laid(both) == pairs(one) & pairs(other)
    assert laid(intersect(other, one)) == laid(both)
    left, right = intersect(both, third), intersect(one, intersect(other, third))
    assert laid(left) == laid(right)
    assert intersect(one, NONE).key == one.key == intersect(NONE, one).key


@given(masks(), st.lists(rects(), max_size=3))
def test_relaxing_adds_the_rectangles(mask, added):
    """MSK-2: what they add is still subject to the mask's tensor."""
    if not mask.causal:
        with pytest.raises(ValueError, match="only a causal mask"):
            relax(mask, added)
        return
    alone = Mask(True, tuple(added))
    bound = Mask(tensor=mask.tensor)
    assert laid(relax(mask, added)) == pairs(mask) | (pairs(alone) & pairs(bound))


def test_a_rectangle_that_adds_nothing_leaves_the_mask_on_its_fast_path():
    """MSK-2: empty ones, and those inside the causal part."""
    useless = [Rect(0, 2, 2, 0, 9), Rect(0, 0, 3, 4, 4), Rect(0, 5, 9, 0, 6)]
    assert relax(CAUSAL, useless) is CAUSAL
    assert relax(CAUSAL, [*useless, Rect(0, 2, 5, 2, 5)]).rects == (Rect(0, 2, 5, 2, 5),)


def test_how_rectangles_meet():
    """MSK-3: with a plain causal mask they vanish, beside a tensor they stay, and with others they
    meet sequence by sequence.
    """
    relaxed = relax(CAUSAL, [Rect(0, 2, 6, 2, 6)])
    tensor = Mask(tensor=torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool))
    assert intersect(relaxed, CAUSAL).rects == ()
    assert intersect(relaxed, tensor).rects == relaxed.rects
    assert intersect(tensor, CAUSAL).causal
    other = relax(CAUSAL, [Rect(0, 3, 9, 3, 5), Rect(1, 2, 6, 2, 6)])
    assert intersect(relaxed, other).rects == (Rect(0, 3, 6, 3, 5),)


def test_a_tensor_mask_must_cover_the_columns():
    """RAP-2: one column, which stands for all, or every position that a column holds."""
    narrow = Mask(tensor=torch.ones(1, 1, QUERIES, KEYS - 1, dtype=torch.bool))
    with pytest.raises(AssertionError, match="narrower"):
        visible(narrow, positions(), torch.arange(KEYS)[None])
    single = Mask(tensor=torch.ones(1, 1, QUERIES, 1, dtype=torch.bool))
    assert visible(single, positions(), torch.arange(KEYS)[None]).all()
