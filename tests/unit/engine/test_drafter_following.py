"""What a bound drafter is told of a request that decodes plainly: 03 GEN-3, DRF-2, RND-15."""

import dataclasses
import itertools

import pytest

from fixtures.noted_drafter import NotedDrafter
from fixtures.toy import EOS, ListSink, ToyTarget, ask, endless, loaded_toy, tokens_in
from forerun.base.errors import CancelledError
from forerun.contract.drafter import DraftRequest
from forerun.engine.follower import Follower
from forerun.engine.plain import PlainDecoder
from forerun.sampling.options import SamplingOptions
from forerun.speculation.bound import BoundDrafters

PROMPT = [1, 2, 3, 4, 6, 7]
LOOK_AHEAD = pytest.mark.parametrize("look_ahead", [0, 1])


def followed(*, look_ahead=0, next_token=endless, chunk=2):
    drafter, target = NotedDrafter(), ToyTarget(next_token)
    loaded = loaded_toy(target, look_ahead=look_ahead, chunk=chunk, drafter=drafter)
    return loaded, drafter


def continued(prompt, length, next_token=endless):
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(next_token(tokens))
    return tokens


def assert_level(loaded, drafter, prompt, *, start=0, next_token=endless):
    """Runs without a gap or an overlap, row by row of the right token; then the token after them
    has settled the session, which was closed once."""
    position = start
    end = loaded.caches[0].offset
    sequence = continued(prompt, end + 1, next_token)
    for first, tokens, rows in drafter.runs:
        assert first == position
        position += len(tokens)
        assert list(tokens) == sequence[first:position]
        assert rows == [next_token(sequence[: place + 1]) for place in range(first, position)]
    assert position == max(end, start)
    assert drafter.settled[-1:] == sequence[end : end + 1]
    assert (drafter.opened, drafter.closed) == (1, 1)
    assert drafter.events[-1] == "close drafter"


@LOOK_AHEAD
@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_every_forward_is_reported_and_the_end_is_settled(look_ahead, budget):
    """DRF-2: each prefill chunk, each plain forward; RND-15: settled with the token drawn last,
    which no forward has taken."""
    loaded, drafter = followed(look_ahead=look_ahead)
    sink = ask(loaded, PROMPT, budget)
    assert_level(loaded, drafter, PROMPT)
    assert [len(tokens) for _, tokens, _ in drafter.runs] == [2, 2, 1, *[1] * budget]
    assert drafter.settled == [PROMPT[-1], sink.tokens[-1]]


@LOOK_AHEAD
def test_a_request_that_draws_nothing_is_settled_with_the_token_kept_back(look_ahead):
    """PRE-6."""
    loaded, drafter = followed(look_ahead=look_ahead)
    ask(loaded, PROMPT, 0)
    assert_level(loaded, drafter, PROMPT)
    assert set(drafter.settled) == {PROMPT[-1]}


@LOOK_AHEAD
def test_a_stop_token_settles_or_has_been_forwarded(look_ahead):
    """03 T3, T3b: with look-ahead 1 EOS stands in the caches, and what was drawn after it settles;
    without, EOS itself does."""
    chain = ToyTarget()._next_token
    loaded, drafter = followed(look_ahead=look_ahead, next_token=chain)
    sink = ask(loaded, [0, 1])
    assert sink.reason == "stop"
    assert_level(loaded, drafter, [0, 1], next_token=chain)
    assert drafter.settled[-1] == (0 if look_ahead else EOS)


@LOOK_AHEAD
@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_a_stop_string_leaves_the_drafter_level(look_ahead, stop_at):
    """05 STP-2: tokens beyond it stand in the caches and have been reported."""
    loaded, drafter = followed(look_ahead=look_ahead)
    assert ask(loaded, PROMPT, sink=ListSink(stop_at=stop_at)).reason == "stop"
    assert_level(loaded, drafter, PROMPT)


@pytest.mark.parametrize("cancel_at", range(3))
def test_a_cancelled_prefill_settles_with_the_token_that_follows(cancel_at):
    """PRE-5, 02 CAN-1: at each chunk, the first one included."""
    loaded, drafter = followed()
    sink = ask(loaded, PROMPT, sink=ListSink(cancel_at=cancel_at))
    assert sink.error.status == 499
    assert_level(loaded, drafter, PROMPT)
    assert drafter.settled == [PROMPT[2 * cancel_at]]


@LOOK_AHEAD
@pytest.mark.parametrize("cancel_at", range(4, 9))
def test_a_request_cancelled_while_it_decodes_leaves_the_drafter_level(look_ahead, cancel_at):
    """DEC-4, RND-15: also when the reader leaves in the midst of a token's delivery."""
    loaded, drafter = followed(look_ahead=look_ahead)
    sink = ask(loaded, PROMPT, sink=ListSink(cancel_at=cancel_at))
    assert sink.error.status == 499
    assert_level(loaded, drafter, PROMPT)


@LOOK_AHEAD
def test_a_restored_prefix_is_not_reported_again(look_ahead):
    """DRF-6: the session begins where the caches were restored."""
    loaded, _ = followed(look_ahead=look_ahead)
    first = ask(loaded, PROMPT, 3)
    prompt = [*PROMPT, *first.tokens, 9, 8]
    again = NotedDrafter()
    loaded = dataclasses.replace(loaded, drafters=BoundDrafters.of(again))
    second = ask(loaded, prompt, 2)
    assert again.runs[0][0] == second.figures.cached_tokens == len(PROMPT) + 2
    assert_level(loaded, again, prompt, start=second.figures.cached_tokens)


def test_the_order_of_a_session_is_restore_open_prefill_settle_attach_decode_close():
    """REQ-1, REQ-2, PRE-2, PRE-6: captures are scheduled before the loop and attached only after
    the drafter has settled; the decoder ends before the drafter, the drafter before the caches."""
    loaded, drafter = followed()
    events, prefix = drafter.events, loaded.prefix
    begin, attach, close = prefix.begin, prefix.attach, prefix.close

    def noted(name, call):
        def noting(*arguments):
            events.append(name)
            return call(*arguments)

        return noting

    def begun(tokens):
        session = begin(tokens)
        events.append(f"begin pending {[capture.offset for capture in session.pending]}")
        return session

    prefix.begin = begun
    prefix.attach, prefix.close = noted("attach", attach), noted("close", close)
    ask(loaded, PROMPT, 1)
    assert events == [
        "begin pending [2]",
        "open [1, 2, 3, 4, 6, 7] slot 0",
        "committed [1, 2] at 0",
        "committed [3, 4] at 2",
        "committed [6] at 4",
        "settle 7",
        "attach",
        "committed [7] at 5",
        f"settle {endless(PROMPT)}",
        "close drafter",
        "close",
        "attach",
    ]


@LOOK_AHEAD
def test_a_drafter_that_needs_no_rows_gets_none(look_ahead):
    """DRF-2."""
    loaded, _ = followed(look_ahead=look_ahead)
    drafter = NotedDrafter(needs_rows=False)
    ask(dataclasses.replace(loaded, drafters=BoundDrafters.of(drafter)), PROMPT, 3)
    assert {rows for _, _, rows in drafter.runs} == {None}
    assert [token for _, run, _ in drafter.runs for token in run] == tokens_in(loaded.caches[0])


@LOOK_AHEAD
def test_a_token_is_reported_within_the_call_that_hands_it_out(look_ahead):
    """DRF-7: so that no row waits for the forward which may overwrite it."""
    loaded, drafter = followed(look_ahead=look_ahead)
    loaded.sampler.add(0, SamplingOptions(temperature=0.0), [1])
    follower = Follower.open([drafter], DraftRequest((1,), 0))
    decoder = PlainDecoder(loaded, 0, [1], follower)
    given = [decoder.next(10).tokens[0] for _ in range(4)]
    told = [token for _, run, _ in drafter.runs for token in run]
    assert told == ([1, *given] if look_ahead else [1, *given[:-1]])
    decoder.close()


@LOOK_AHEAD
@pytest.mark.parametrize(
    ("call", "count"),
    [
        *itertools.product(["open", "close"], [1]),
        *itertools.product(["settle"], [1, 2]),
        *itertools.product(["committed"], range(1, 7)),
    ],
)
def test_a_drafter_that_fails_fails_its_request_alone(look_ahead, call, count):
    """REQ-3: closed once whatever broke; the next request answers as a fresh engine does."""
    loaded, drafter = followed(look_ahead=look_ahead)
    drafter.fails[call] = count
    sink = ListSink()
    with pytest.raises(ValueError, match="the drafter broke"):
        ask(loaded, PROMPT, 3, sink=sink)
    positions = [position for position, _, _ in drafter.runs]
    assert positions == sorted(set(positions))  # told once of each, even where it failed over it
    assert sink.calls.count("fail") == 1
    assert sink.error.status == 500
    assert drafter.closed == drafter.opened
    fresh, _ = followed()
    assert ask(loaded, PROMPT, 3).tokens == ask(fresh, PROMPT, 3).tokens


@LOOK_AHEAD
@pytest.mark.parametrize("fails_at", [0, 2, 4, 5, 6, 7])
@pytest.mark.parametrize("also", [None, "settle", "close"])
def test_what_fails_in_closing_hides_no_error(look_ahead, fails_at, also):
    """REQ-3: the caller hears of the forward that broke, in prefill or in decode."""
    loaded, drafter = followed(look_ahead=look_ahead)
    loaded.model.fails_at = fails_at
    if also == "close":
        drafter.fails["close"] = 1
    elif also == "settle":
        drafter.fails["settle"] = 1 if fails_at < 5 else 2
    with pytest.raises(RuntimeError, match="the toy broke"):
        ask(loaded, PROMPT, 5)
    assert drafter.closed == 1


def test_what_fails_in_closing_a_cancelled_request_is_an_error():
    """A drafter that is not level must not be mistaken for one that is."""
    loaded, drafter = followed()
    drafter.fails["close"] = 1
    sink = ListSink(cancel_at=1)
    with pytest.raises(ValueError, match="the drafter broke") as caught:
        ask(loaded, PROMPT, sink=sink)
    assert isinstance(caught.value.__context__, CancelledError)
    assert sink.error.status == 500


def test_without_a_drafter_the_target_is_run_all_the_same():
    """GEN-1: nothing is bound, nothing is told."""
    loaded, drafter = followed()
    alone = dataclasses.replace(loaded, drafters=BoundDrafters())
    assert ask(alone, PROMPT, 3).tokens == continued(PROMPT, 9)[6:]
    assert drafter.events == []
