"""The Python API over a tiny real model: 08 LIB; case G07."""

import doctest
import gc
import importlib
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest

import forerun
from fixtures.smollm2 import models_folder, smollm2
from fixtures.stored import tiny_store
from fixtures.tiny import tiny_folder
from forerun import library
from forerun.base import errors
from forerun.base.errors import (
    CancelledError,
    ForerunError,
    RequestError,
    UnsupportedError,
)
from forerun.engine import memory
from forerun.protocol.events import Chunk
from forerun.protocol.imports import CreateRequest, PullRequest
from forerun.protocol.requests import CompletionRequest, Message
from forerun.runner import service
from forerun.scheduler.importing import run_import
from forerun.scheduler.runners import LoadOptions, RunnerProcess

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("library"))


@pytest.fixture(autouse=True)
def environment(settings, monkeypatch):
    monkeypatch.setenv("FORERUN_MODELS", str(settings.models))
    monkeypatch.setenv("FORERUN_THREADS", "1")


@pytest.fixture(scope="module")
def model(settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_MODELS", str(settings.models))
        patch.setenv("FORERUN_THREADS", "1")
        with forerun.load("tiny") as loaded:
            yield loaded


def test_importing_forerun_does_not_import_torch():
    """LIB-1."""
    code = "import sys, forerun; forerun.load; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_every_example_in_the_docstrings_runs(model):
    """LIB-5."""
    found = doctest.DocTestFinder().find(library, globs={"forerun": forerun, "model": model})
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    for example in found:
        runner.run(example)
    assert (runner.failures, runner.tries) == (0, runner.tries)
    assert runner.tries >= 8
    for name in library.__all__:
        assert getattr(library, name).__doc__


@pytest.mark.parametrize("budget", [0, 1, 5, 9])
def test_an_answer_ends_with_exactly_one_done(model, budget):
    """LIB-2; case A15."""
    *chunks, done = model.generate("Once upon", num_predict=budget, temperature=0)
    assert all(isinstance(chunk, forerun.Chunk) for chunk in chunks)
    assert done.figures.generated_tokens <= budget
    assert done.reason == ("length" if done.figures.generated_tokens == budget else "stop")
    assert done.figures.prompt_tokens == 9


def test_the_text_is_that_of_the_chunks(model):
    events = list(model.chat(HELLO, num_predict=12, temperature=0))
    text = "".join(event.text for event in events if isinstance(event, forerun.Chunk))
    assert model.chat(HELLO, num_predict=12, temperature=0).text() == text


def test_the_same_seed_gives_the_same_text_cold_and_warm(model):
    """04 SED-2."""
    texts = {model.chat(HELLO, num_predict=12, seed=7, temperature=1.0).text() for _ in range(3)}
    assert len(texts) == 1
    model.generate("something else", num_predict=3).text()
    texts.add(model.chat(HELLO, num_predict=12, seed=7, temperature=1.0).text())
    assert len(texts) == 1


def test_a_second_turn_reuses_the_first(model):
    first = model.chat(HELLO, num_predict=4, temperature=0)
    first.text()
    *_, done = model.chat(HELLO, num_predict=4, temperature=0)
    assert done.figures.cached_tokens == done.figures.prompt_tokens - 1


@pytest.mark.parametrize(("cache_bytes", "kept"), [(10**9, True), ("1GiB", True), (0, False)])
def test_a_conversation_that_was_left_is_there_again_within_the_budget(cache_bytes, kept):
    """02 STR-7."""
    first, other = "a" * 40, "b" * 60
    with forerun.load("tiny", cache_bytes=cache_bytes) as model:
        for prompt in (first, other):
            model.generate(prompt, num_predict=2, seed=1).text()
        *_, done = model.generate(first, num_predict=1, seed=1)
    assert done.figures.cached_tokens == (39 if kept else 0)


@pytest.mark.parametrize("value", [-1, 1.5, "2 apples", "", True, [1]])
def test_a_budget_is_a_number_of_bytes_or_a_size(value):
    with pytest.raises(RequestError, match="cache_bytes is "):
        forerun.load("tiny", cache_bytes=value)


def test_what_is_kept_is_told_and_cleared(model):
    """02 STR: as data; and an answer that is under way is no reason to wait."""
    model.clear_cache()
    model.generate("a" * 40, num_predict=2, seed=1).text()
    report = model.cache()
    assert report.nodes[0].text.startswith("aaaa")
    assert report.live_tokens == 41
    cleared = model.clear_cache()
    assert (cleared.nodes, cleared.live_tokens) == ([], 0)
    assert cleared.freed_bytes == report.live_bytes + report.snapshots > 0


def test_log_probabilities(model):
    """04 LGP-4."""
    *chunks, done = model.generate("a", logprobs=True, top_logprobs=2, num_predict=6, temperature=0)
    entries = [entry for chunk in chunks for entry in chunk.logprobs]
    assert len(entries) == done.figures.generated_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)  # greedy


def test_mistakes_are_raised_by_the_call(model):
    """LIB-3: an unknown option is a TypeError, a bad value a RequestError, before any event."""
    with pytest.raises(TypeError, match="temperatur"):
        model.generate("a", temperatur=1)
    with pytest.raises(RequestError, match="top_p is 2"):
        model.generate("a", top_p=2)
    with pytest.raises(RequestError, match="messages is empty"):
        model.chat([])
    with pytest.raises(RequestError, match="malformed"):
        model.chat([{"role": "user", "contents": "a"}])
    with pytest.raises(RequestError, match="malformed"):
        model.generate(7)
    with pytest.raises(TypeError, match="list"):
        model.embed("one text")
    with pytest.raises(UnsupportedError, match="format"):
        model.chat(HELLO, format="json")
    with pytest.raises(RequestError, match="600 tokens and the context is 512"):
        model.generate("a" * 600)
    with pytest.raises(RequestError, match="token 99999"):
        model.detokenize([99999])
    with pytest.raises(RequestError, match="dimensions"):
        model.embed(["a"], dimensions=0)


@pytest.mark.parametrize("messages", ["hello", {"role": "user"}, ["hi"], None, 5])
def test_messages_that_are_no_list_of_objects_are_refused_in_words(model, messages):
    with pytest.raises(RequestError, match=r"^messages .*; it must be a list of objects$"):
        model.chat(messages)


def test_answers_that_nobody_reads_hold_up_nobody(model):
    """The bounded buffer is for readers of other processes; here the context is the bound."""
    unread = [model.generate("abc", num_predict=400, top_logprobs=20, logprobs=True)] * 2
    started = time.monotonic()
    assert model.generate("abc", num_predict=4).text() is not None
    assert time.monotonic() - started < 20  # the stall limit is 30
    assert list(unread[0])[-1].reason in ("length", "stop")


def test_a_model_tells_what_it_is(model):
    assert repr(model) == "<forerun.Model tiny:latest on cpu, 512 tokens>"


def test_loading_lets_torchs_threads_soon_sleep(settings):
    """Decision 0008: only where torch is not loaded yet, and the user's word stands."""
    code = "import os, forerun; forerun.load('tiny').close(); print(os.environ['GOMP_SPINCOUNT'])"
    for given, expected in (({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        environment = {**os.environ, "FORERUN_MODELS": str(settings.models), **given}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        if not given:
            environment.pop("GOMP_SPINCOUNT", None)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


def test_a_load_that_cannot_be_is_refused_by_name():
    with pytest.raises(RequestError, match="draft is 'fast'"):
        forerun.load("tiny", draft="fast")
    with pytest.raises(RequestError, match="num_ctx is 1"):
        forerun.load("tiny", num_ctx=1)
    with pytest.raises(forerun.errors.LoadError, match="cuda:7"):
        forerun.load("tiny", device="cuda:7")


def test_a_drafter_that_the_model_lacks_is_refused_once_it_is_loaded(model):
    """03 DRF-8: at load as in a call; one that it has changes no answer."""
    with pytest.raises(RequestError, match="draft is 'model'; this model offers auto, lookup, off"):
        forerun.load("tiny", draft="model")
    with pytest.raises(RequestError, match="draft is 'model'"):
        model.generate("ab", draft="model")
    options = {"temperature": 0.0, "num_predict": 20}
    plain = model.generate("abcabcabc", draft="off", **options).text()
    with forerun.load("tiny", draft="lookup") as drafting:
        assert drafting.generate("abcabcabc", **options).text() == plain


def test_a_name_that_is_nowhere_is_an_error():
    """A pull is tried first; it names what there is."""
    with pytest.raises(ForerunError, match="nothing-like-it"):
        forerun.load("nothing-like-it")


def test_a_model_that_is_not_in_the_store_is_pulled_with_progress(tmp_path, monkeypatch, capfd):
    """LIB-1: here from a folder, by the real importer."""
    folder = tiny_folder(tmp_path / "checkpoint", "llama")

    def local(request, settings):
        assert request == PullRequest(name="elsewhere:latest")
        create = CreateRequest(name=request.name, modelfile=f"FROM {folder}\n", folder=str(folder))
        yield from run_import(create, settings)

    monkeypatch.setattr(library, "run_import", local)
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path / "store"))
    capfd.readouterr()
    with forerun.load("elsewhere") as model:
        shown = capfd.readouterr().err.splitlines()
        assert model.info.name == "elsewhere:latest"
        assert model.generate("a", num_predict=0).text() == ""
    (size,) = {line.split(": ")[0] for line in shown if line.endswith(" %")}
    assert size.startswith("converting tensors of ")
    assert shown.count(f"{size}: 100 %") == 1
    assert len(shown) == len(set(shown))


def test_closing_an_answer_cancels_it(model):
    """LIB-2: by hand and by leaving a `with`."""
    by_hand = model.generate("Once", num_predict=400, temperature=0)
    stream = by_hand._cancel.peek()[1].__self__
    assert not stream.cancelled.is_set()
    by_hand.close()
    assert stream.cancelled.is_set()
    with model.generate("Once", num_predict=400, temperature=0) as answer:
        stream = answer._cancel.peek()[1].__self__
        assert not stream.cancelled.is_set()
    assert stream.cancelled.is_set()


def test_a_closed_answer_frees_the_thread_and_harms_nothing(model):
    """05 DEC-10: closing cancels."""
    expected = model.generate("abc", num_predict=8, temperature=0).text()
    endless = model.generate("Once", num_predict=400, temperature=0)
    next(endless)
    endless.close()
    assert list(endless) == []
    assert model.generate("abc", num_predict=8, temperature=0).text() == expected


def test_a_dropped_answer_is_cancelled(model):
    """LIB-2."""
    answer = model.generate("Once", num_predict=400, temperature=0)
    next(answer)
    stream = answer._cancel.peek()[1].__self__
    del answer
    gc.collect()
    assert stream.cancelled.is_set()
    model.generate("a", num_predict=1).text()


@pytest.mark.parametrize("events", [0, 1, 2, 5, 20])
def test_whenever_an_answer_is_cancelled_the_next_one_is_as_fresh(model, events):
    prompt = "It was a dark and stormy night"
    expected = model.generate(prompt, num_predict=10, temperature=0).text()
    with model.generate(prompt + " and", num_predict=60, temperature=0) as answer:
        for _ in range(events):
            next(answer, None)
    assert model.generate(prompt, num_predict=10, temperature=0).text() == expected


def test_threads_queue_for_the_device(model):
    """LIB-4."""
    expected = {word: model.generate(word, num_predict=8, seed=1).text() for word in "abcd"}
    found = {}

    def ask(word):
        found[word] = model.generate(word, num_predict=8, seed=1).text()

    threads = [threading.Thread(target=ask, args=(word,)) for word in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_a_text_without_end_stops_at_the_context():
    """Case G07: num_predict -1 and a model that never ends."""
    with forerun.load("tiny", num_ctx=40) as small:
        assert small.info.context_length == 40
        bias = {str(token): -100 for token in (256, 258)}
        *_, done = small.generate("a" * 10, logit_bias=bias)
        assert (done.reason, done.figures.generated_tokens) == ("length", 30)
        *_, again = small.generate("b" * 10, logit_bias=bias)
        assert again.reason == "length"


def test_a_closed_model_is_an_error_and_ends_what_was_under_way():
    """LIB-4."""
    closing = forerun.load("tiny")
    answer = closing.generate("Once", num_predict=400, logit_bias={"258": -100, "256": -100})
    next(answer)
    closing.close()
    with pytest.raises(CancelledError):
        list(answer)
    for use in (
        lambda: closing.generate("a"),
        lambda: closing.tokenize("a"),
        lambda: closing.detokenize([97]),
        lambda: closing.embed(["a"]),
    ):
        with pytest.raises(ForerunError, match="closed"):
            use()
    closing.close()


def test_what_a_load_freed_is_given_back_once_before_it_is_ready(monkeypatch):
    """05 LOD-1, LOD-6."""
    devices = []
    monkeypatch.setattr(memory, "release_freed", lambda device: devices.append(device.type))
    with forerun.load("tiny", device="cpu"):
        assert devices == ["cpu"]


def test_a_closed_model_is_gone_before_memory_is_given_back(monkeypatch):
    """05 LOD-6, 03 MEM-1: what is still held could not be given back."""
    closing = forerun.load("tiny")
    model = weakref.ref(closing._service.served.engine.model)
    caches = closing._service.served.engine.caches
    closing.generate("a", num_predict=2).text()
    assert all(cache.nbytes() for cache in caches)
    held = []
    monkeypatch.setattr(
        service,
        "release_freed",
        lambda _: held.append((model(), sum(cache.nbytes() for cache in caches))),
    )
    closing.close()
    assert held == [(None, 0)]
    closing.close()
    assert len(held) == 1


def ids(events):
    return [token for event in events if isinstance(event, Chunk) for token in event.tokens]


def test_a_runner_and_the_library_give_equal_ids(model, settings):
    """LIB-5: one engine, in whichever process."""
    options = {"seed": 3, "temperature": 1.0, "num_predict": 16}
    here = ids(model.chat(HELLO, **options))
    request = CompletionRequest(messages=[Message(role="user", content="Hello")], options=options)
    with RunnerProcess("tiny", settings, options=LoadOptions(num_thread=1)) as runner:
        runner.load()
        assert ids(runner.connection.complete(request)) == here
    assert len(here) == 16


def test_two_loads_are_two_models(model):
    """LIB-4."""
    with forerun.load("tiny") as other:
        expected = other.generate("abc", num_predict=6, temperature=0).text()
        other.generate("xyz", num_predict=3).text()
    assert model.generate("abc", num_predict=6, temperature=0).text() == expected


def test_embeddings_have_length_one_and_can_be_cut(model):
    """08 API-13."""
    one, other = model.embed(["the cat", "a dog"])
    assert len(one) == model.info.embedding_length
    for vector in (one, other, *model.embed(["the cat"], dimensions=5)):
        assert sum(value * value for value in vector) == pytest.approx(1, abs=1e-5)
    cut = model.embed(["the cat"], dimensions=5)[0]
    scale = sum(value * value for value in one[:5]) ** 0.5
    assert cut == pytest.approx([value / scale for value in one[:5]], abs=1e-5)
    assert one != pytest.approx(other, abs=1e-3)


def test_embedding_leaves_a_conversation_warm(model):
    model.generate("Once upon a time", num_predict=2, temperature=0).text()
    model.embed(["something else"])
    *_, done = model.generate("Once upon a time", num_predict=2, temperature=0)
    assert done.figures.cached_tokens == done.figures.prompt_tokens - 1


def test_a_model_that_is_dropped_is_closed():
    dropped = forerun.load("tiny")
    finished = dropped._closing
    del dropped
    gc.collect()
    assert not finished.alive


def test_an_interpreter_that_ends_with_an_open_model_ends(settings):
    code = (
        "import forerun\n"
        "model = forerun.load('tiny')\n"
        "answer = model.generate('a', num_predict=400)\n"
        "next(answer)\n"
    )
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", code],
        env=settings.environment(),
        check=True,
        timeout=60,
    )
    assert time.monotonic() - started < 60


def test_a_modelfile_sets_defaults(tmp_path, monkeypatch):
    """04 OPT-4, PRP-8: parameters, SYSTEM and MESSAGE of a stored model."""
    lines = (
        "PARAMETER num_ctx 77\nPARAMETER num_predict 3\nPARAMETER temperature 0\n"
        "SYSTEM Be brief.\nMESSAGE user Hi\nMESSAGE assistant Ho\n"
    )
    settings = tiny_store(tmp_path, "qwen3", modelfile=lines)
    monkeypatch.setenv("FORERUN_MODELS", str(settings.models))
    monkeypatch.setenv("FORERUN_CONTEXT_LENGTH", "99")
    with forerun.load("tiny") as model:
        assert model.info.context_length == 77  # the model's own word before the environment's
        *_, done = model.chat([{"role": "user", "content": "a"}], num_predict=0)
        turns = ["system\nBe brief.", "user\nHi", "assistant\nHo", "user\na"]
        prompt = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
        expected = model.tokenize(f"{prompt}<|im_start|>assistant\n")
        assert done.figures.prompt_tokens == len(expected)
        *_, done = model.generate("abc", logit_bias={"258": -100, "256": -100})
        assert done.figures.generated_tokens == 3
    with forerun.load("tiny", num_ctx=50) as model:
        assert model.info.context_length == 50  # and the caller's before both


@pytest.mark.model
def test_loading_leaves_nothing_behind_and_smollm2_answers():
    """05 LOD-6: right after a load, memory is the weights, the tokenizer and little else."""
    smollm2()
    code = (
        "import torch, forerun\n"
        "from forerun.engine.memory import anonymous_bytes\n"
        "from forerun.runner import compose, loading, service\n"
        "before = anonymous_bytes()\n"
        "model = forerun.load('smollm2:135m', device='cpu')\n"
        "print(anonymous_bytes() - before, model.info.weight_bytes)\n"
        "ask = [{'role': 'user', 'content': 'What is the capital of France?'}]\n"
        "print(model.chat(ask, temperature=0, num_predict=20).text())\n"
    )
    environment = {**os.environ, "FORERUN_MODELS": str(models_folder()), "FORERUN_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    figures, answer = found.stdout.split("\n", 1)
    growth, weights = map(int, figures.split())
    assert growth < weights + 20 * 1024**2 + 32 * 1024**2  # with its draft head
    assert "Paris" in answer


def test_every_error_can_be_imported_to_be_caught():
    """`from forerun.errors import RequestError`, as README has it; none is left out."""
    made = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(forerun.errors.__all__) == made
    assert all(getattr(forerun.errors, name) is getattr(errors, name) for name in made)
    assert importlib.import_module("forerun.errors") is forerun.errors
