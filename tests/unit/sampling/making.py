"""Samplers, masks and devices for the sampler's tests."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CPU = torch.device("cpu")


def sampler(vocab: int = 8, context: int = 64, device: str = "cpu") -> Sampler:
    return Sampler(vocab_size=vocab, context_length=context, device=torch.device(device))


def one_slot(
    options: SamplingOptions,
    prior: Sequence[int] = (),
    vocab: int = 8,
    context: int = 64,
    device: str = "cpu",
) -> Sampler:
    made = sampler(vocab, context, device)
    made.add(0, options, list(prior))
    return made


def words(*rows: Collection[int], vocab: int = 8) -> Tensor:
    """Mask words that allow exactly the tokens of each row."""
    packed = []
    for allowed in rows:
        row = [0] * -(-vocab // 32)
        for token in allowed:
            row[token // 32] |= 1 << token % 32
        packed.append([word - 2**32 if word >= 2**31 else word for word in row])
    return torch.tensor(packed, dtype=torch.int32)


@contextmanager
def no_waiting(device: str) -> Iterator[None]:
    """On CUDA, a read by the host raises inside."""
    if device != "cuda":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says of itself that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def chi_square(counts: Sequence[int], probs: Sequence[float]) -> float:
    """Pearson's statistic; categories of probability 0 must have no count."""
    total = sum(counts)
    assert all(count == 0 for count, prob in zip(counts, probs, strict=True) if prob == 0)
    return sum(
        (count - total * prob) ** 2 / (total * prob)
        for count, prob in zip(counts, probs, strict=True)
        if prob > 0
    )
