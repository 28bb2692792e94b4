"""Who runs in `hybrid.py` beside forerun's service, and what one decoded token has to read."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from benchmarks.contenders import HALF, Ours, Run, Work
from benchmarks.importing import weight_bytes
from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache
from forerun.contract.model import RankedLogits
from forerun.engine.loaded import LoadedModel
from forerun.runner.compose import load_engine
from forerun.runner.request import LoadRequest
from forerun.settings import Settings
from forerun.speculation.rollback import Rollback
from forerun.store.names import ModelName
from forerun.store.store import Store

if TYPE_CHECKING:
    from forerun.contract.cache import LayerCache, Snapshot
    from forerun.store.stored import StoredModel

SINGLE = 4  # bytes of a 32-bit number
PIECE = 256  # prompt tokens of a forward
REPEATS = 5
CPU = torch.device("cpu")


class Arrivals(BaseStreamer):
    """Notes when `generate` hands out each token."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        del value
        if self._prompt_seen:
            self.at.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing waits."""


def hybrid_peer(folder: Path, threads: int) -> Run:
    """transformers' own `generate` in bfloat16 on a folder's weights. Decodes a quarter as many."""
    torch.set_num_threads(threads)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    generator = torch.Generator().manual_seed(0)

    def run(work: Work) -> float:
        decodes = work.kind == "decode"
        count = work.tokens // 4 + 1 if decodes else 1
        length = work.context if decodes else work.tokens
        ids = torch.randint(peer.config.vocab_size, (1, length), generator=generator)
        arrivals, start = Arrivals(), time.perf_counter()
        with torch.inference_mode():
            peer.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                pad_token_id=0,
                streamer=arrivals,
            )
        assert len(arrivals.at) == count, (len(arrivals.at), count)
        if decodes:
            return (count - 1) / (arrivals.at[-1] - arrivals.at[0])
        return length / (arrivals.at[0] - start)

    return run


@dataclass(frozen=True, slots=True)
class Rounds:
    """Verification rounds one right behind the other, always from the same state."""

    context: int  # tokens in the caches before the first of them
    drafts: int  # of each round
    kept: tuple[int | None, ...]  # drafts that stand; None: a forward that nobody can roll back


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Medians of some repetitions, a round each, in seconds."""

    rounds: tuple[float, ...]  # forward, logits' argmax and rollback
    rollback: tuple[float, ...]  # `begin` and `commit` alone

    @property
    def total(self) -> float:
        return sum(self.rounds)


def round_contender(given: Ours) -> Callable[[Rounds], RoundTimes]:
    """Rounds over the model that a runner would load."""
    settings = Settings.from_environment()
    stored = Store(settings.models).get(ModelName.parse(given.model))
    request = LoadRequest.under(
        settings, given.model, num_ctx=4096, device="cpu", threads=given.threads
    )
    with torch.inference_mode():
        driver = RoundDriver(load_engine(stored, request, lambda *_: None))
    return driver.run


class RoundDriver:
    """Runs rounds of random tokens, and returns to where they began."""

    def __init__(self, engine: LoadedModel) -> None:
        self._engine, self._chance = engine, random.Random(0)
        self._caches = [cache for cache in engine.caches if cache is not None]
        self._rollback = Rollback(engine.caches)
        self._model = engine.model
        self._ranked = engine.model if isinstance(engine.model, RankedLogits) else None
        self._base: list[tuple[LayerCache, Snapshot | None]] = []
        self._context = -1

    @torch.inference_mode()
    def run(self, asked: Rounds) -> RoundTimes:
        taken = [self._repeat(asked) for _ in range(REPEATS + 1)][1:]
        rounds, rollbacks = zip(*(zip(*each, strict=True) for each in taken), strict=True)
        return RoundTimes(_medians(rounds), _medians(rollbacks))

    @torch.inference_mode()
    def rewind(self, context: int) -> None:
        """To so many tokens, the same ones until another number is asked for."""
        if self._context != context:
            self._fill(context)
        for cache, snapshot in self._base:
            returned = cache.restore(snapshot, context)
            assert returned, f"a {type(cache).__name__} does not return to {context}"

    def _repeat(self, asked: Rounds) -> list[tuple[float, float]]:
        """Seconds of each round, and of its rollback alone."""
        self.rewind(asked.context)
        before, times = asked.context, []
        for kept in asked.kept:
            times.append(self._round(before, asked.drafts, kept))
            before += 1 + (asked.drafts if kept is None else kept)
            assert all(cache.offset == before for cache in self._caches), "a round went astray"
        return times

    def _round(self, before: int, drafts: int, kept: int | None) -> tuple[float, float]:
        tokens = self._words(drafts + 1)
        start = time.perf_counter()
        if kept is not None:
            self._rollback.begin(before, drafts)
        begun = time.perf_counter()
        self._forward(tokens, before)
        judged = time.perf_counter()
        if kept is not None:
            self._rollback.commit(kept)
        end = time.perf_counter()
        return end - start, begun - start + end - judged

    def _forward(self, tokens: Sequence[int], before: int) -> None:
        """With each column's likeliest token, read by the host."""
        batch = Batch.of(tokens, before, CPU)
        hidden = self._model.forward(batch, self._engine.caches).hidden[0]
        best = None if self._ranked is None else self._ranked.best(hidden, 1)
        (self._model.unembed(hidden).argmax(-1) if best is None else best.ids).tolist()

    def _fill(self, context: int) -> None:
        for _, snapshot in self._base:
            if snapshot is not None:
                snapshot.close()
        for cache in self._caches:
            cache.free()
        for first in range(0, context, PIECE):
            self._forward(self._words(min(PIECE, context - first)), first)
        self._base = [
            (cache, None if isinstance(cache, AttentionCache) else cache.snapshot(0))
            for cache in self._caches
        ]
        self._context = context

    def _words(self, count: int) -> list[int]:
        return [self._chance.randrange(self._model.facts.vocab_size) for _ in range(count)]


def _medians(repeated: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.median(times) for times in zip(*repeated, strict=True))


def bytes_a_token(stored: "StoredModel", work: Work) -> float:
    """What one decoded token has to move.

    Every weight but the head's that foresees one token further, once; keys and values of all that
    came before; each recurrent state and its tail, which are read and written.
    """
    config = stored.json("config.json")
    heads, dim, tail = (
        int(str(config[f"linear_{field}"]))
        for field in ("num_value_heads", "value_head_dim", "conv_kernel_dim")
    )
    key_heads, key_dim, kv_heads, head_dim = (
        int(str(config[field]))
        for field in (
            "linear_num_key_heads",
            "linear_key_head_dim",
            "num_key_value_heads",
            "head_dim",
        )
    )
    kinds = config["layer_types"]
    assert isinstance(kinds, list)
    full = sum("full" in str(kind) for kind in kinds)
    channels = 2 * key_heads * key_dim + heads * dim
    state = SINGLE * heads * dim * key_dim + HALF * (tail - 1) * channels
    row = HALF * 2 * kv_heads * head_dim
    weights = sum(
        size for name, size in weight_bytes(stored).items() if not name.startswith("mtp.")
    )
    rows = full * row * (work.context + work.tokens / 2)
    return weights + rows + 2 * state * (len(kinds) - full)
