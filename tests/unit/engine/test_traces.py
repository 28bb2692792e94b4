"""The plain decoder step by step: 03 T3, T3b; 05 DEC-7."""

import dataclasses

import pytest
import torch

from fixtures.noted_drafter import NotedDrafter
from fixtures.toy import EOS, VOCABULARY, ToyTarget, ask, endless, loaded_toy, tokens_in
from forerun.base.errors import RequestError
from forerun.contract.batch import Batch
from forerun.engine.follower import Follower
from forerun.engine.plain import PlainDecoder
from forerun.sampling.noise import Purpose
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.bound import BoundDrafters


def recorded(look_ahead):
    target = ToyTarget()
    loaded = loaded_toy(target, look_ahead=look_ahead)
    sink = ask(loaded, [0, 1])
    decodes = [forward for forward in target.forwards if forward[0] > 0]
    held = tokens_in(loaded.caches[0])
    return decodes, sink, held


def test_a_decoder_that_looks_ahead_has_the_stop_token_in_flight():
    """03 T3 (look-ahead 1): the forward of EOS is under way when the host reads it."""
    decodes, sink, held = recorded(look_ahead=1)
    assert decodes == [(position, 1) for position in range(1, 6)]
    assert (sink.tokens, sink.reason, sink.figures.generated_tokens) == ([2, 3, 4], "stop", 3)
    assert held == [0, 1, 2, 3, 4, EOS]


def test_a_decoder_without_look_ahead_never_forwards_the_stop_token():
    """03 T3b (look-ahead 0): recurrent state does not contain EOS."""
    decodes, sink, held = recorded(look_ahead=0)
    assert decodes == [(position, 1) for position in range(1, 5)]
    assert (sink.tokens, sink.reason, sink.figures.generated_tokens) == ([2, 3, 4], "stop", 3)
    assert held == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_what_was_drawn_and_not_handed_out_is_drained(look_ahead):
    """DEC-4; T3's outputs are 2 3 4 EOS 0, the last one drained."""
    loaded = loaded_toy(ToyTarget(), look_ahead=look_ahead)
    loaded.sampler.add(0, SamplingOptions(temperature=0.0), [1])
    decoder = PlainDecoder(loaded, 0, [1], Follower())
    handed_out = [decoder.next(10).tokens for _ in range(4)]
    assert handed_out == [(2,), (3,), (4,), (EOS,)]
    assert decoder.drain() == ((0,) if look_ahead else ())
    assert decoder.drain() == ()
    decoder.close()


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_a_token_is_drawn_with_the_noise_of_the_place_it_takes(look_ahead):
    """04 SED-1: position counts from the start of the sequence, prompt included."""
    options, prompt = SamplingOptions(temperature=2.0, seed=3), [1, 2, 3]
    target = ToyTarget(endless, peak=2.0)
    sink = ask(loaded_toy(target, look_ahead=look_ahead), prompt, 8, sampling=options)
    sampler = Sampler(vocab_size=VOCABULARY, context_length=200, device=target.facts.device)
    sampler.add(0, options, prompt)
    sequence = list(prompt)
    for token in sink.tokens:
        hidden = target.forward(Batch.of(sequence, 0, target.facts.device), None).hidden
        distribution = sampler.distribution(0, target.unembed(hidden[0, -1:]))
        key = sampler.keys(0, [len(sequence)], Purpose.TARGET)
        assert distribution.draw(key).tolist() == [token]
        sequence.append(token)


class DrySampler(Sampler):
    """Allows no token at one position, as a grammar that is at its end does."""

    dry_at = 0

    def sample(self, slots, logits, positions, allowed=None):
        if positions == [self.dry_at]:
            allowed = torch.zeros((1, 1), dtype=torch.int32)
        return super().sample(slots, logits, positions, allowed)


def dry(look_ahead, dry_at):
    """A chain 1 2 3 4 EOS 0 0 ... for which position `dry_at` allows nothing."""
    target = ToyTarget()
    loaded = loaded_toy(target, look_ahead=look_ahead)
    sampler = DrySampler(vocab_size=VOCABULARY, context_length=200, device=target.facts.device)
    sampler.dry_at = dry_at
    return dataclasses.replace(loaded, sampler=sampler)


@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize("dry_at", [2, 3, 4])
def test_what_was_drawn_before_no_token_was_allowed_is_handed_out(look_ahead, dry_at):
    """04 ORD-9, decoder laws 1 and 2, DEC-4: the same tokens at either look-ahead."""
    loaded = dry(look_ahead, dry_at)
    sink = ask(loaded, [0, 1])
    assert isinstance(sink.error, RequestError)
    assert sink.tokens == [2, 3, 4][: dry_at - 2]
    assert tokens_in(loaded.caches[0]) == [0, 1, *sink.tokens]
    again = ask(loaded, [0, 1, *sink.tokens, 2], 1)
    assert again.figures.cached_tokens == dry_at
    assert again.tokens == [3]


@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize("dry_at", [2, 3, 4])
def test_where_no_token_was_allowed_nothing_settles_the_last_one(look_ahead, dry_at):
    """DRF-2: all that was forwarded is reported; that token has no successor to make a pair of."""
    drafter = NotedDrafter()
    loaded = dataclasses.replace(dry(look_ahead, dry_at), drafters=BoundDrafters.of(drafter))
    ask(loaded, [0, 1])
    assert [token for _, run, _ in drafter.runs for token in run] == tokens_in(loaded.caches[0])
    assert drafter.settled == [1]
    assert drafter.closed == 1


@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize(("budget", "dry_at", "reason"), [(20, 6, "stop"), (2, 4, "length")])
def test_a_text_that_ended_does_not_miss_a_token(look_ahead, budget, dry_at, reason):
    """DEC-3: nothing is asked after a stop token or the budget, so nothing can be refused."""
    sink = ask(dry(look_ahead, dry_at), [0, 1], budget)
    assert (sink.error, sink.reason) == (None, reason)
    assert sink.tokens == [2, 3, 4][:budget]


def test_the_last_token_of_a_budget_is_not_run_ahead_of():
    target = ToyTarget()
    ask(loaded_toy(target, look_ahead=1), [0, 1], 2)
    assert [forward for forward in target.forwards if forward[0] > 0] == [(1, 1), (2, 1)]
