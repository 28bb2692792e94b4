"""The best of the C++ output head from Python, against the logits that it writes. 06 KER-1."""

import pytest
import torch

from fixtures.kernels_parity import random_affine
from fixtures.native_kernels import ISAS, native_library, team
from forerun.kernels.native.library import Library
from forerun.kernels.operands import AffineWeight
from forerun.kernels.output_head import reference
from forerun.kernels.output_head.native import NativeHead
from forerun.kernels.select import KernelChoice
from forerun.nn.linear import Linear
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight

ROWS, COLUMNS = 1003, 96
FUSED = KernelChoice(threads=2)


def tied_weight(rows: int = ROWS, bits: int = 8) -> AffineWeight:
    """Rows of a few kinds, so that most logits have equals all over the vocabulary."""
    few = random_affine(200, COLUMNS, bits=bits, group=32, seed=1)
    kinds = torch.randint(0, 200, (rows,), generator=torch.Generator().manual_seed(2))
    assert few.bias is not None
    words = few.words.view(torch.int32)[kinds].view(torch.uint32)
    return AffineWeight(words, few.scale[kinds], few.bias[kinds], bits)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Heads made in a test run on this instruction set, always on all their threads."""
    native_library()
    name: str = request.param
    made = {threads: team(threads, name) for threads in (1, 2, 3)}
    monkeypatch.setattr(Library, "team", lambda _, threads: made[threads])
    return name


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_best_are_those_of_all_logits(bits: int, threads: int) -> None:
    """WID-1, WID-3, 04 ORD-6: values bit for bit, of equals the smaller ids, at any width."""
    head = NativeHead(tied_weight(bits=bits), threads)
    x = torch.randn(17, COLUMNS, generator=torch.Generator().manual_seed(bits))
    for width in (1, 4, 17, 2, 0):
        logits = head(x[:width])
        for count in (1, 2, 40, 128, 3):
            best, tokens = head.best(x[:width], count)
            values, ids = reference.best(logits, count)
            assert (best.dtype, tokens.dtype) == (torch.float32, torch.int64)
            assert torch.equal(best, values)
            assert torch.equal(tokens, ids)


@pytest.mark.usefixtures("isa")
def test_a_row_of_nan_has_no_best() -> None:
    """04 ORD-9: it is told by ids of -1, and the row beside it is as ever."""
    head = NativeHead(tied_weight(), 1)
    x = torch.randn(2, COLUMNS)
    _, want = head.best(x[1:], 3)
    x[0] = torch.nan
    logits = head(x)
    assert torch.isnan(logits[0]).all()
    best = head.best(x, 3)
    assert torch.equal(best[1], torch.cat([torch.full((1, 3), -1), want]))
    for ours, theirs in zip(best, reference.best(logits, 3), strict=True):
        assert torch.equal(ours, theirs)


def test_a_small_vocabulary_bounds_the_best() -> None:
    assert NativeHead(tied_weight(), 1).most_best == 128
    assert NativeHead(tied_weight(rows=33), 1).most_best == 33


def test_a_linear_hands_on_the_best_of_its_head() -> None:
    """LIN-1, LIN-4: only of what it returns: not before a bias, a factor or rounding."""
    native_library()
    form, x = QuantFormat("int8", 32), torch.randn(2, COLUMNS)
    weight = PackedWeight(tied_weight(), form, None)
    plain = Linear(weight, dtype=torch.float32, kernels=FUSED, fused=True)
    best = plain.best(x, 5)
    assert best is not None
    assert torch.equal(best.values, plain(x).topk(5).values)
    assert plain.best(x, 129) is None
    scaled = PackedWeight(tied_weight(), form, torch.tensor(0.5))
    for other in (
        Linear(weight, torch.zeros(ROWS), dtype=torch.float32, kernels=FUSED, fused=True),
        Linear(scaled, dtype=torch.float32, kernels=FUSED, fused=True),
        Linear(weight, dtype=torch.bfloat16, kernels=FUSED, fused=True),
        Linear(weight, dtype=torch.float32, kernels=KernelChoice(cpu_kernels=False), fused=True),
        Linear(torch.randn(ROWS, COLUMNS)),
    ):
        assert other.best(x.to(other.dtype), 5) is None
