"""Drives a real engine over tiny hybrid models through arbitrary requests; all it knows stays cold.

Of the models one is loaded, with its own head.

After each request the answer is that of the bare model; what the layers hold, what every node of
the trie has stored and the logits of the next position are those of one cold forward over the same
tokens (fp32, 5e-5 of each tensor's scale). Token ids are compared where no two logits are as near
as rounding (06 WID-6).

Rules: 02 STR-5, 02 KEY-5, 02 KEY-7, CLO-4, CLO-5, EVI-4, EVI-9, CAN-1, CAN-2, B05, B07, A19, A21.
"""

import copy
from functools import cache

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from torch import Tensor

from fixtures.hybrid import KINDS, loaded_hybrid
from fixtures.hybrid_reference import OPTIONS, ROUNDING, assert_holds, continued
from fixtures.prefix_invariants import below, check, check_within_budget, rows_of, tokens_to
from fixtures.real_hybrid import Layout, model_of
from fixtures.toy import GREEDY, ListSink
from forerun.cache.kv import KVCache
from forerun.cache.recurrent import RecurrentCache
from forerun.cache.recurrent_snapshots import RecurrentSnapshot
from forerun.cache.rotating import RotatingCache
from forerun.cache.snapshots import RowSnapshot
from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache, Snapshot
from forerun.contract.model import TargetModel
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.prefix.captures import CaptureRule
from forerun.prefix.trie import Node

NEAR = 1e-4  # of two logits: the next token depends on the order of additions
LONGEST = 60  # tokens of a prompt
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=9)
LAYOUTS: list[Layout] = [
    KINDS,
    ("recurrent", "full", "recurrent", "full"),
    ("sliding", "full"),
    "qwen3_5",
]


class HybridLaws(RuleBasedStateMachine):
    @initialize(
        kinds=st.sampled_from(LAYOUTS),
        look_ahead_keys=st.sampled_from([0, 1]),
        chunk=st.sampled_from([1, 4, 16]),
        budget=st.sampled_from([4000, 20_000, 2**30]),
        interval=st.sampled_from([6, 8192]),
    )
    def load(self, kinds, look_ahead_keys, chunk, budget, interval):
        self.layout, self.model = kinds, model_of(kinds)
        self.loaded = loaded_hybrid(
            self.model,
            look_ahead_keys=look_ahead_keys,
            chunk=chunk,
            budget_bytes=budget,
            captures=CaptureRule(interval),
        )
        self.look_ahead = look_ahead_keys
        self.caches = [*self.loaded.caches, *self.loaded.drafters.caches]
        self.texts: list[list[int]] = [[]]

    @rule(
        data=st.data(),
        new=TEXT,
        budget=st.integers(0, 5),
        cancel_at=st.none() | st.integers(0, 8),
    )
    @torch.inference_mode()
    def request(self, data, new, budget, cancel_at):
        base = data.draw(st.sampled_from(self.texts))
        kept = data.draw(st.integers(0, len(base)) | st.just(len(base)))
        prompt = [*base[:kept], *new][:LONGEST]
        sequence, gap = continued(self.model, prompt, budget + 2)
        if gap <= NEAR:
            return
        sink = ListSink(cancel_at=cancel_at)
        generate(
            self.loaded,
            Job(tuple(prompt), frozenset(), GREEDY, budget, sink, sink.cancelled),
        )
        expected = sequence[len(prompt) :][:budget]
        assert sink.tokens == expected[: len(sink.tokens)]
        assert sink.error is not None or sink.tokens == expected
        offset = assert_holds(self.loaded, self.model, sequence)
        self.next_logits_are_cold(sequence[: offset + 1])
        self.texts.append([*prompt, *sink.tokens])
        self.check()

    @rule(budget=st.sampled_from([0, 4000, 20_000, 2**30]))
    def set_budget(self, budget):
        before = self.loaded.prefix.snapshot_bytes
        self.loaded.prefix.set_budget(budget)
        assert self.loaded.prefix.snapshot_bytes <= before
        self.check()

    def check(self):
        prefix = self.loaded.prefix
        check(prefix, self.caches)
        check_within_budget(prefix, self.caches)
        stateful = [cache for cache in self.caches if cache is not None]
        for node in below(prefix.root):
            if not node.children and node.parent is not None:
                cold = self.cold_layers(tuple(tokens_to(node, self.look_ahead)))
                for place in range(len(stateful)):
                    self.check_column(node, place, cold)

    def check_column(self, leaf: Node, place: int, cold: "Cold") -> None:
        """One layer's snapshots on the way from a leaf to the root."""
        node = leaf
        while node.parent is not None:
            snapshot = node.snapshots[place]
            if snapshot is not None:
                for ours, theirs in zip(*cold.both(snapshot, place), strict=True):
                    error, scale = (ours - theirs).abs().max(), theirs.abs().max()
                    assert error <= ROUNDING * scale, (place, node.start, node.end, float(error))
            node = node.parent

    def cold_layers(self, tokens: tuple[int, ...]) -> "Cold":
        return cold(self.layout, tokens, self.look_ahead)

    def next_logits_are_cold(self, sequence: list[int]) -> None:
        """On a copy of the caches, as recurrent layers cannot take a token back."""
        device, at = self.model.facts.device, len(sequence) - 1
        warm_caches = copy.deepcopy(self.loaded.caches)
        warm = self.model.forward(Batch.of(sequence[at:], at, device), warm_caches)
        bare = self.model.forward(Batch.of(sequence, 0, device), self.model.new_caches(OPTIONS))
        ours, theirs = (self.model.unembed(run.hidden[:, -1]) for run in (warm, bare))
        # twice that of a state: logits are behind those of all layers
        assert (ours - theirs).abs().max() <= 2 * ROUNDING * theirs.abs().max()


class Cold:
    """All layers after one forward over `tokens`; of a whole state, what it was after each."""

    def __init__(self, model: TargetModel, tokens: tuple[int, ...], look_ahead: int) -> None:
        device, count = model.facts.device, len(tokens) - look_ahead
        targets = model.new_caches(OPTIONS)
        for layer in targets:
            if isinstance(layer, RecurrentCache):
                layer.get(1, torch.float32)
            if isinstance(layer, RecurrentCache | RotatingCache):
                layer.prepare_snapshots(range(1, count + 1))
        batch = Batch.of(tokens[:count], 0, device)
        forward = model.forward(batch, targets)
        drafts: list[LayerCache | None] = []
        if look_ahead:
            draft = model.self_draft()
            drafts = draft.new_caches(OPTIONS)
            after = Batch.of(tokens[1:], 0, device, conditioning=forward.conditioning)
            draft.forward(after, targets, drafts)
        self._layers = [layer for layer in (*targets, *drafts) if layer is not None]
        self._states = {
            place: layer.take_snapshots()
            for place, layer in enumerate(self._layers)
            if isinstance(layer, RecurrentCache | RotatingCache)
        }

    def both(self, snapshot: Snapshot, place: int) -> tuple[list[Tensor], list[Tensor]]:
        """What a snapshot holds, and what it should hold."""
        layer = self._layers[place]
        if isinstance(layer, KVCache):
            history, span = layer.view(), slice(snapshot.start, snapshot.end)
            return contents(snapshot), [history.keys[:, :, span], history.values[:, :, span]]
        return contents(snapshot), contents(self._states[place][snapshot.end - 1])


def contents(snapshot: Snapshot | None) -> list[Tensor]:
    if isinstance(snapshot, RecurrentSnapshot):
        return [snapshot.state.conv, snapshot.state.delta]
    assert isinstance(snapshot, RowSnapshot)
    return [*rows_of(snapshot)]


@cache
def cold(layout: Layout, tokens: tuple[int, ...], look_ahead: int) -> Cold:
    return Cold(model_of(layout), tokens, look_ahead)


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        HybridLaws,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )
    cold.cache_clear()


def test_all_that_a_trie_over_hybrid_layers_knows_is_cold() -> None:
    run(12, 8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_that_a_trie_over_hybrid_layers_knows_is_cold_over_many_examples() -> None:
    run(1000, 20)
