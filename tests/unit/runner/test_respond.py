"""Tokens to events: 05 UTF, STP, DEC-9; 04 LGP-4; cases E01, E03.

A byte tokenizer stands in for a model's: one token a byte, so that every border is a token's.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.tiny import TURN_END, write_tokenizer
from fixtures.toy import ToyTarget, ask, endless, loaded_toy
from forerun.base.errors import RequestError
from forerun.contract.decoder import TokenLogprob
from forerun.contract.sink import Drafting as Counted
from forerun.contract.sink import Figures
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.protocol.events import Chunk, Done, DraftDepth, Drafting, DraftPosition, Failed
from forerun.runner.respond import Responder
from forerun.runner.stream import EventStream, StreamLimits
from forerun.sampling.options import SamplingOptions
from forerun.tokenizer.tokenizer import Tokenizer

FIGURES = Figures(
    prompt_tokens=5,
    cached_tokens=2,
    generated_tokens=9,
    prompt_seconds=0.5,
    generation_seconds=1.5,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def tokenizer(files):
    return Tokenizer.load(files)


def answer(tokenizer, runs, stops=(), *, logprobs=False, reason="length"):
    """Push runs until a stop string is complete; the events and the tokens that counted."""
    stream = EventStream()
    responder = Responder(stream, tokenizer, stops)
    counted = 0
    for run in runs:
        entries = [TokenLogprob(token, -0.5, ((token, -0.5), (1, -2.0))) for token in run]
        stopped = responder.take(run, entries if logprobs else [])
        counted += len(run) if stopped is None else stopped
        if stopped is not None:
            reason = "stop"
            break
    responder.finish(reason, FIGURES)
    return [event for event in stream if isinstance(event, Chunk | Done)], counted


def joined(events):
    return "".join(event.text for event in events if isinstance(event, Chunk))


def one_by_one(text):
    return [[byte] for byte in text.encode()]


TEXTS = st.text(alphabet="abé日👩\ufffd", max_size=12)


def test_the_end_tells_what_the_drafter_did(tokenizer):
    """03 STA-2: positions and spans by name, for whoever reads the events."""
    counted = Counted("lookup", 4, 6, 5, by_position=((3, 3), (2, 3)), depths=((1.5, 2),))
    stream = EventStream()
    Responder(stream, tokenizer, ()).finish("stop", replace(FIGURES, drafting=counted))
    (done,) = stream
    assert done.figures.drafting == Drafting(
        drafter="lookup",
        rounds=4,
        drafted=6,
        accepted=5,
        positions=[
            DraftPosition(accepted=3, observed=3),
            DraftPosition(accepted=2, observed=3),
        ],
        depths=[DraftDepth(mean=1.5, largest=2)],
    )


@given(text=TEXTS, cut=st.integers(0, 3), width=st.integers(1, 4))
def test_joined_chunks_are_the_text_without_a_cut_character(tokenizer, text, cut, width):
    """05 UTF-1, UTF-3; case E03: real U+FFFD kept, half a character at the end dropped."""
    data = text.encode() + "日".encode()[:cut]
    runs = [list(data[at : at + width]) for at in range(0, len(data), width)]
    events, counted = answer(tokenizer, runs)
    assert joined(events) == (text + "日" if cut == 3 else text)
    assert counted == len(data)
    ids = [token for event in events if isinstance(event, Chunk) for token in event.tokens]
    assert ids == list(data)


def test_half_a_character_emits_nothing(tokenizer):
    """UTF-2, DEC-9: E3 81 | 93 E3 | 82 93 is "", first kana, second kana."""
    stream = EventStream()
    responder = Responder(stream, tokenizer, ())
    seen = []
    for run in ([0xE3, 0x81], [0x93, 0xE3], [0x82, 0x93]):
        responder.take(run, [])
        seen.append([(event.text, event.tokens) for event in stream.take()])
    assert seen == [[], [("こ", [0xE3, 0x81, 0x93])], [("ん", [0xE3, 0x82, 0x93])]]


@given(
    text=st.text(alphabet="ab👩", max_size=10),
    stops=st.lists(st.text(alphabet="ab👩", min_size=1, max_size=3), max_size=3),
    width=st.integers(1, 5),
)
def test_a_stop_string_ends_the_text_wherever_tokens_begin(tokenizer, text, stops, width):
    """05 STP-1, STP-2; case E01: across tokens and runs, nothing of it is sent."""
    data = text.encode()
    runs = [list(data[at : at + width]) for at in range(0, len(data), width)]
    events, counted = answer(tokenizer, runs, stops)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (joined(events), counted) == (text, len(data))
        return
    end = min(ends)
    begin = min(text.find(stop) for stop in stops if stop in text[:end])
    assert joined(events) == text[:begin]
    assert counted == len(text[:end].encode())
    assert events[-1].reason == "stop"


def test_a_stop_string_over_several_tokens(tokenizer):
    """Case E01."""
    runs = [list(b"The quick br"), list(b"own"), list(b" fox jumps")]
    events, counted = answer(tokenizer, runs, ["own fox"])
    assert joined(events) == "The quick br"
    assert counted == len(b"The quick brown fox")


def test_the_text_of_a_stop_that_never_came_is_given_out_at_the_end(tokenizer):
    events, _ = answer(tokenizer, one_by_one("a b"), [" bc"])
    assert joined(events) == "a b"


def test_an_empty_stop_string_is_refused(tokenizer):
    with pytest.raises(RequestError, match="stop"):
        Responder(EventStream(), tokenizer, [""])


@given(text=TEXTS, width=st.integers(1, 4), stops=st.sampled_from([(), ("ab",), ("日",)]))
def test_log_probabilities_ride_with_their_text(tokenizer, text, width, stops):
    """04 LGP-4, 05 UTF-4: joined bytes of a chunk's entries are the chunk's text."""
    data = text.encode()
    runs = [list(data[at : at + width]) for at in range(0, len(data), width)]
    events, _ = answer(tokenizer, runs, stops, logprobs=True)
    for event in events:
        if isinstance(event, Chunk):
            spelled = bytes(byte for entry in event.logprobs for byte in entry.bytes)
            assert spelled.decode() == event.text
            assert len(event.logprobs) == len(event.tokens)


def test_a_token_cut_by_a_stop_string_keeps_its_entry(files):
    """04 LGP-4: part of its text was sent; a token wholly inside the stop string is left out."""
    definition = json.loads(files["tokenizer.json"])
    word = {"id": 259, "content": "ab", "special": False, "normalized": False}
    sides = {"single_word": False, "lstrip": False, "rstrip": False}
    definition["added_tokens"].append(word | sides)
    changed = {**files, "tokenizer.json": json.dumps(definition).encode()}
    events, counted = answer(Tokenizer.load(changed), [[0x78, 259, 0x63]], ["bc"], logprobs=True)
    assert joined(events) == "xa"
    assert [entry.token for entry in events[0].logprobs] == ["x", "ab"]
    assert counted == 3


def test_every_token_has_one_entry_even_if_its_character_was_cut(tokenizer):
    """Case A15: as many entries as tokens."""
    events, counted = answer(tokenizer, [list(b"a\xe3\x81")], logprobs=True)
    entries = [entry for event in events if isinstance(event, Chunk) for entry in event.logprobs]
    assert [entry.bytes for entry in entries] == [[0x61], [0xE3], [0x81]]
    assert entries[1].token == "\ufffd"
    assert entries[0].top_logprobs[1].token == "\x01"
    assert counted == 3


def test_control_tokens_have_no_text_and_are_counted(tokenizer):
    events, counted = answer(tokenizer, [[0x61, TURN_END, 0x62]])
    assert joined(events) == "ab"
    assert counted == 3


def test_one_event_a_run(tokenizer):
    """DEC-8: a round of several tokens is one event."""
    events, _ = answer(tokenizer, [list(b"abc"), list(b"de")])
    assert len(events) == 2  # the stream joins neighbours; the last is Done
    stream = EventStream()
    responder = Responder(stream, tokenizer, ())
    responder.take(list(b"abc"), [])
    assert len(stream.take()) == 1


def test_figures_and_progress_are_passed_on(tokenizer):
    """DEC-5."""
    stream = EventStream()
    responder = Responder(stream, tokenizer, (), load_s=2.0)
    responder.started(5, 2)
    responder.prefilled(4)
    responder.take([0x61], [])
    responder.finish("length", FIGURES)
    *progress, _, done = stream.take()
    assert [(event.processed, event.total) for event in progress] == [(2, 5), (4, 5)]
    assert done.reason == "length"
    assert done.figures.prompt_tokens == 5
    assert done.figures.cached_tokens == 2
    assert done.figures.generated_tokens == 9
    assert done.figures.load_seconds == 2.0
    assert done.figures.first_token_seconds > 0


def test_a_failure_is_one_event(tokenizer):
    stream = EventStream()
    Responder(stream, tokenizer, ()).fail(RequestError("no token is allowed here"))
    assert stream.take() == [Failed(status=400, message="no token is allowed here")]


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_a_reader_that_stalls_loses_its_request_alone(tokenizer, look_ahead):
    """DEC-8: the device thread waits so long and no longer, and the next request is answered."""
    loaded = loaded_toy(ToyTarget(endless), look_ahead=look_ahead)
    stream = EventStream(StreamLimits(events=3, stall_s=0.05))
    responder = Responder(stream, tokenizer, ())
    greedy = SamplingOptions(temperature=0.0)
    generate(loaded, Job((1, 2), frozenset(), greedy, 50, responder, stream.cancelled))
    last = stream.take()[-1]
    assert isinstance(last, Failed)
    assert last.status == 499
    assert 0.04 < responder.waited_s < 5
    assert ask(loaded, [1, 2], 5).tokens == ask(loaded_toy(ToyTarget(endless)), [1, 2], 5).tokens


def test_the_end_of_a_request_that_nobody_reads_is_a_failure(tokenizer):
    stream = EventStream()
    responder = Responder(stream, tokenizer, ["xy"])
    responder.take(list(b"ax"), [])
    stream.cancel()
    responder.finish("length", FIGURES)
    assert stream.take()[-1].status == 499
