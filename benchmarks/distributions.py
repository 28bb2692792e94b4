"""Who predicts in `quality.py`, and how far each prediction is from the exact one.

Exact is what the stored weights mean: dequantised in float32, with activations and caches in
float32. Its logits go to files, so that contenders can be read in processes of their own. Each
process computes on one thread: beside other work that beats several threads that wait for each
other, and no result of forerun's kernels depends on it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy
import torch
from torch import Tensor

from benchmarks.contenders import leave_out_own_kernels, transformers_model
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions, Caches, TargetModel
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.runner.compose import load_engine
from forerun.runner.request import LoadRequest
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

CPU = torch.device("cpu")
PIECE = 256  # positions whose logits are held at once


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens to be read. Each but the last is a position; what follows it is known."""

    name: str
    tokens: tuple[int, ...]

    @property
    def positions(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that everybody reads, and where its exact logits are."""

    model: str
    text: Text
    exact: Path  # file of logits, float32 [positions, vocabulary] in numpy's format


@dataclass(frozen=True, slots=True)
class Scores:
    """Predictions beside the exact ones, by position."""

    divergence: tuple[float, ...]  # KL(exact || theirs) in nats
    same_top: tuple[bool, ...]  # whether the likeliest token is the same
    surprise: tuple[float, ...]  # -ln p of the token that follows

    @classmethod
    def joined(cls, parts: Sequence["Scores"]) -> "Scores":
        return cls(
            tuple(chain.from_iterable(part.divergence for part in parts)),
            tuple(chain.from_iterable(part.same_top for part in parts)),
            tuple(chain.from_iterable(part.surprise for part in parts)),
        )

    def between(self, first: int, end: int) -> "Scores":
        """Those of positions [first, end)."""
        return Scores(
            self.divergence[first:end], self.same_top[first:end], self.surprise[first:end]
        )


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over positions."""

    divergence: float  # nats
    same_top: float  # share
    perplexity: float

    @classmethod
    def of(cls, scores: Scores) -> "Quality":
        count = len(scores.divergence)
        return cls(
            math.fsum(scores.divergence) / count,
            sum(scores.same_top) / count,
            math.exp(math.fsum(scores.surprise) / count),
        )


Logits = Iterator[Tensor]  # [positions of a piece, vocabulary], pieces in order
Reader = Callable[[Sequence[int]], Logits]


def score(exact: Tensor, theirs: Tensor, following: Tensor) -> Scores:
    """Logits [n, vocabulary] beside the exact ones; `following` is the n ids that came.

    In float32, which leaves some 1e-6 nats of noise at a position.
    """
    wanted, got = exact.log_softmax(-1), theirs.log_softmax(-1)
    divergence = (wanted.exp() * (wanted - got)).sum(-1)
    surprise = -got.gather(-1, following[:, None])[:, 0]
    same = exact.argmax(-1) == theirs.argmax(-1)
    return Scores(tuple(divergence.tolist()), tuple(same.tolist()), tuple(surprise.tolist()))


def write_exact(reading: Reading) -> Scores:
    """Write the exact logits; their scores beside themselves."""
    pieces = list(exact_reader(reading)(reading.text.tokens[:-1]))
    logits = torch.cat(pieces)
    numpy.save(reading.exact, logits.numpy())
    return _scores(reading.text, pieces, logits)


def compare(make: Callable[[Reading], Reader], reading: Reading) -> Scores:
    """What the reader predicts, beside the exact logits written before."""
    exact = torch.from_numpy(numpy.load(reading.exact))
    return _scores(reading.text, make(reading)(reading.text.tokens[:-1]), exact)


def _scores(text: Text, pieces: Iterable[Tensor], exact: Tensor) -> Scores:
    following, parts, first = torch.tensor(text.tokens[1:]), [], 0
    for piece in pieces:
        end = first + len(piece)
        parts.append(score(exact[first:end], piece, following[first:end]))
        first = end
    assert first == text.positions, (first, text.positions)
    return Scores.joined(parts)


def exact_reader(reading: Reading) -> Reader:
    """The reference kernels in float32."""
    torch.set_num_threads(1)
    stored = found(reading.model)
    files = [stored.file(layer) for layer in stored.tensors]
    placement = Placement(torch.float32, CPU, KernelChoice(cpu_kernels=False))
    return reader_of(load_model(stored.json("config.json"), files, placement))


def native_reader(reading: Reading) -> Reader:
    """forerun's own kernels, as they serve."""
    model = served(reading)
    assert model.facts.own_threads, "forerun's kernels are not built or cannot serve this model"
    return reader_of(model)


def torch_reader(reading: Reading) -> Reader:
    """PyTorch's kernels, as they serve where forerun's are not built."""
    leave_out_own_kernels()
    return reader_of(served(reading))


def transformers_reader(reading: Reading) -> Reader:
    """transformers in bfloat16, on the dequantised weights rounded to it."""
    torch.set_num_threads(1)
    peer = transformers_model(reading.model)

    @torch.inference_mode()
    def read(tokens: Sequence[int]) -> Logits:
        hidden = peer.model(torch.tensor([tokens])).last_hidden_state[0]
        for piece in hidden.split(PIECE):
            yield peer.lm_head(piece).float()

    return read


def served(reading: Reading) -> TargetModel:
    """The model that a runner would load on a CPU."""
    settings = Settings.from_environment()
    request = LoadRequest.under(
        settings, reading.model, num_ctx=reading.text.positions, device="cpu", threads=1
    )
    return load_engine(found(reading.model), request, lambda *_: None).model


def reader_of(model: TargetModel) -> Reader:
    """Reads from an empty cache, piece by piece."""

    def read(tokens: Sequence[int]) -> Logits:
        return _pieces(model, model.new_caches(CacheOptions(len(tokens))), tokens)

    return read


@torch.inference_mode()
def _pieces(model: TargetModel, caches: Caches, tokens: Sequence[int]) -> Logits:
    for first in range(0, len(tokens), PIECE):
        batch = Batch.of(tokens[first : first + PIECE], first, CPU)
        yield model.unembed(model.forward(batch, caches).hidden[0]).float()


def found(name: str) -> StoredModel:
    """The model in the store that the environment names."""
    return Store(Settings.from_environment().models).get(ModelName.parse(name))
