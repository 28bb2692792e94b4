"""Worked values of sliding windows, with tokens named by number from 1 on (ROT-20)."""

import torch

from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape
from forerun.contract.batch import Batch
from forerun.contract.mask import CAUSAL
from forerun.nn.attention import Attention, resolve

CPU = torch.device("cpu")
SHAPE = RowShape(1, 1, 1, torch.float32, CPU)


class Fed:
    """A cache whose rows are the numbers of the tokens that were fed."""

    def __init__(self, window, slack=4):
        self.cache = RotatingCache(SHAPE, window, slack)

    def feed(self, *tokens):
        """The tokens that each of the new ones sees, in the order of the columns."""
        start, width = self.cache.offset, len(tokens)
        rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
        history = self.cache.update(rows, -rows)
        plan = resolve(history, Batch.of(tokens, start, CPU), CAUSAL, torch.float32)
        columns = [int(token) for token in history.keys.flatten().tolist()]
        shown = torch.ones(width, len(columns), dtype=torch.bool)
        if plan.causal:
            shown = shown.tril()
        if plan.bias is not None:
            shown = plan.bias[0, 0] == 0
        return [[columns[i] for i in row.nonzero().flatten().tolist()] for row in shown]


def numbers(first, last):
    return list(range(first, last + 1))


def test_single_tokens_and_then_two():
    """ROT-20: W=4."""
    fed = Fed(window=4)
    fed.feed(1, 2, 3)
    for token in range(4, 10):
        assert fed.feed(token) == [numbers(token - 3, token)]
    assert fed.feed(10, 11) == [numbers(7, 10), numbers(8, 11)]


def test_chunks_longer_than_the_window():
    """ROT-20, ROT-7: W=4, chunks of 8, 8, 4."""
    fed = Fed(window=4)
    fed.feed(*numbers(1, 8))
    assert fed.feed(*numbers(9, 16))[0] == numbers(6, 9)
    assert fed.feed(*numbers(17, 20))[0] == numbers(14, 17)
    assert fed.feed(21) == [numbers(18, 21)]


def test_a_rewind_within_a_full_window():
    """ROT-20, ROT-6, R3: W=8; what was rewound is not seen again."""
    fed = Fed(window=8)
    fed.feed(*numbers(1, 8))
    assert fed.cache.restore(None, 6)
    assert fed.feed(9, 10, 11)[-1] == [*numbers(2, 6), 9, 10, 11]


def test_a_window_that_never_fills():
    """ROT-20: W=512; all are seen, in order."""
    fed = Fed(window=512)
    fed.feed(1, 2, 3)
    fed.feed(4)
    assert fed.feed(5, 6, 7)[-1] == numbers(1, 7)


def test_a_refused_draft_after_the_wrap_leaves_no_trace():
    """ROT-20, REW-3, R15: W=4, S=4; results equal those of a cache that never saw it."""
    attention = Attention(0, 0.7, 4)
    rows = torch.randn(32, 1, 1)
    one, other = (RotatingCache(SHAPE, 4, 4) for _ in range(2))

    def attend(cache, first, last):
        part = rows[first:last].view(1, 1, -1, 1)
        batch = Batch.of(range(last - first), cache.offset, CPU)
        return attention(part, part, part, batch, cache=cache)

    for cache in (one, other):
        for token in range(20):
            attend(cache, token, token + 1)
    attend(one, 20, 24)
    assert one.restore(None, 20)
    assert torch.equal(attend(one, 24, 28), attend(other, 24, 28))
    assert torch.equal(attend(one, 28, 29), attend(other, 28, 29))
