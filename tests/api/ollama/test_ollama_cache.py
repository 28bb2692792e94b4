"""POST /api/cache, a door of our own: what a loaded model keeps warm, and what that is worth.

02 STR-7, BEG-6; 05 HTP-2, DEC-5; 08 API-14, RUN-5, SCH-4.
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import ollama
import openai
import pytest

from fixtures.scripted import ScriptedSettings, scripted_store
from fixtures.server import Server, scripted_server

MODEL, OTHER = "scripted", "other"
BUDGET = 3_000_000
FIRST, SECOND = "what is a tide? SAY:water", "what is the moon? SAY:stone"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ScriptedSettings:
    return scripted_store(
        tmp_path_factory.mktemp("cache"),
        names=(MODEL, OTHER),
        environment={"FORERUN_CACHE_BYTES": str(BUDGET)},
    )


@pytest.fixture(scope="module")
def server(settings: ScriptedSettings) -> Iterator[Server]:
    with scripted_server(settings, FORERUN_LOG="debug") as server:
        yield server
        assert "Traceback" not in server.log


def fetch(server: Server, path: str, body: object = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"{server.url}{path}", data, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def cache(server: Server, model: str = MODEL, **fields: object) -> dict[str, object]:
    status, body = fetch(server, "/api/cache", {"model": model, **fields})
    assert status == 200, body
    return cast(dict[str, object], json.loads(body))


def nodes(report: dict[str, object]) -> list[dict[str, object]]:
    return cast(list[dict[str, object]], report["nodes"])


def ask(server: Server, *turns: str) -> dict[str, object]:
    """The answer's last object, whose extension fields the client's types would drop."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    status, body = fetch(
        server, "/api/chat", {"model": MODEL, "messages": messages, "stream": False}
    )
    assert status == 200, body
    return cast(dict[str, object], json.loads(body))


def cached(answer: dict[str, object]) -> int:
    return cast(int, answer.get("cached_count", 0))


@pytest.fixture
def warm(server: Server, client: ollama.Client) -> None:
    """Two conversations, and nothing else."""
    client.chat(MODEL)
    cache(server, clear=True)
    for content in (FIRST, SECOND):
        ask(server, content)


@pytest.mark.usefixtures("warm")
def test_what_is_kept(server: Server) -> None:
    """02 STR-7: every field is there, also those that are false or 0."""
    report = cache(server)
    assert (report["model"], report["context"]) == ("scripted:latest", 8192)
    assert (report["budget"], report["freed_bytes"]) == (BUDGET, 0)
    found = nodes(report)
    assert report["snapshots"] == sum(cast(int, node["bytes"]) for node in found)
    for node in found:
        assert node.keys() == {
            *("depth", "start", "end", "bytes", "age_seconds", "text"),
            *("active", "frontier", "user", "lazy", "complete"),
        }
    assert found[0]["text"] == "what is"  # neither control tokens nor the template's roles
    assert report["as_of_seconds"] == 0
    assert [node["frontier"] for node in found].count(True) == 1


@pytest.mark.usefixtures("warm")
def test_both_conversations_go_on_where_they_were(server: Server) -> None:
    """DEC-5: the prompt's own count is the whole prompt, cached or not; BEG-6: a line for each."""
    written = f"_user\n{FIRST}_\n_assistant\nwater"  # a control token is one token
    prompt = len(f"{written}_\n_user\nSAY:more_\n_assistant\n")
    later = ask(server, FIRST, "water", "SAY:more")
    assert later["prompt_eval_count"] == prompt
    assert cached(later) == len(written)
    counts = f"matched={len(written)} cached={len(written)} left={prompt - len(written)}"
    assert f"hit total={prompt} {counts}" in server.log
    assert f"prompt_tokens={prompt} cached_tokens={len(written)} " in server.log
    ask(server, FIRST, "water", "SAY:more")  # all of it is cached now: no speed is told
    line = server.log.rpartition(f"cached_tokens={prompt - 1} ")[2].splitlines()[0]
    assert "prompt_per_s" not in line
    assert "generated_per_s" in line


@pytest.mark.usefixtures("warm")
def test_what_was_cached_is_told_in_the_other_dialect_and_the_metrics(server: Server) -> None:
    """DEC-5, OAI-4."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        usage = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": FIRST}]
        ).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    told = usage.prompt_tokens_details.cached_tokens
    assert told is not None
    assert 0 < told < usage.prompt_tokens
    text = fetch(server, "/metrics")[1].decode()
    counted = re.search(
        r'forerun_tokens_total\{kind="cached",model="scripted:latest"\} (\d+)', text
    )
    assert counted is not None
    assert int(counted[1]) >= told


@pytest.mark.usefixtures("warm")
def test_snapshots_are_memory_that_is_told(server: Server, client: ollama.Client) -> None:
    """HTP-2, RUN-5: in the metrics by themselves, in /api/ps as part of the size."""
    report = cache(server)
    text = fetch(server, "/metrics")[1].decode()
    for use in ("snapshots", "budget"):
        line = f'forerun_memory_bytes{{model="scripted:latest",use="{use}"}} '
        assert float(text.partition(line)[2].split()[0]) == report[use]
    (model,) = [each for each in client.ps().models if each.name == "scripted:latest"]
    assert model.size == 4096 + cast(int, report["snapshots"]) + cast(int, report["live_bytes"])


@pytest.mark.usefixtures("warm")
def test_a_clear_frees_and_says_how_much(server: Server) -> None:
    held = cache(server)
    cleared = cache(server, clear=True)
    assert nodes(cleared) == []
    total = cast(int, held["snapshots"]) + cast(int, held["live_bytes"])
    assert cleared["freed_bytes"] == total > 0
    assert (cleared["snapshots"], cleared["live_tokens"]) == (0, 0)
    assert cached(ask(server, FIRST)) == 0
    assert f"cache cleared model=scripted:latest freed={total}" in server.log


def test_only_a_loaded_model_has_a_cache(server: Server, client: ollama.Client) -> None:
    """API-14: 404, and nothing is loaded for it."""
    client.generate(OTHER, keep_alive=0)
    before = server.runners()
    status, body = fetch(server, "/api/cache", {"model": OTHER})
    assert status == 404
    assert "other:latest is not loaded" in json.loads(body)["error"]
    assert "`forerun ps`" in json.loads(body)["error"]
    status, body = fetch(server, "/api/cache", {"model": "nope"})
    assert status == 404
    assert "not found" in json.loads(body)["error"]
    assert server.runners() == before


@pytest.mark.parametrize("body", [{}, {"model": 7}, {"model": MODEL, "clear": "yes"}, []])
def test_what_is_no_such_request(server: Server, body: object) -> None:
    assert fetch(server, "/api/cache", body)[0] == 400


@pytest.mark.parametrize(("value", "told"), [("yes", "'yes'"), (1, "1"), ([], "[]")])
def test_what_is_wrong_is_said_in_plain_words(server: Server, value: object, told: str) -> None:
    _, body = fetch(server, "/api/cache", {"model": MODEL, "clear": value})
    assert json.loads(body) == {"error": f"clear is {told}; it must be true or false"}


@pytest.mark.usefixtures("warm")
def test_a_model_that_is_answering_shows_what_it_had(server: Server, client: ollama.Client) -> None:
    """At once, although the device thread, which the trie belongs to, is busy; DEC-5."""
    held = cache(server)
    stream = client.chat(
        MODEL, [{"role": "user", "content": "ENDLESS TOKEN_MS=5 SAY:on "}], stream=True
    )
    next(iter(stream))
    began = time.monotonic()
    during = cache(server)
    assert time.monotonic() - began < 5
    assert cast(float, during["as_of_seconds"]) > 0
    assert [node["text"] for node in nodes(during)] == [node["text"] for node in nodes(held)]
    cast(Any, stream).close()


def test_it_takes_a_post(server: Server) -> None:
    status, body = fetch(server, "/api/cache")
    assert status == 405
    assert "POST" in json.loads(body)["error"]


def test_a_look_is_no_use_of_the_model(server: Server, client: ollama.Client) -> None:
    """SCH-4: it leaves when its own time is up."""
    client.chat(MODEL, [], keep_alive="3s")
    (before,) = [each for each in client.ps().models if each.name == "scripted:latest"]
    cache(server)
    (after,) = [each for each in client.ps().models if each.name == "scripted:latest"]
    assert after.expires_at == before.expires_at
    client.chat(MODEL, [], keep_alive="5m")


def test_an_unload_meanwhile_is_not_loaded(server: Server, client: ollama.Client) -> None:
    """A clear waits for an answer, which an unload cuts."""
    stream = client.chat(
        MODEL, [{"role": "user", "content": "ENDLESS TOKEN_MS=5 SAY:on "}], stream=True
    )
    next(iter(stream))
    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(fetch, server, "/api/cache", {"model": MODEL, "clear": True})
        unloaded = fetch(
            server, "/api/generate", {"model": MODEL, "keep_alive": 0, "stream": False}
        )
        assert unloaded[0] == 200
        with pytest.raises(ollama.ResponseError):
            for _ in stream:
                pass
        status, body = looked.result()
    assert status == 404, body
    assert "is not loaded" in json.loads(body)["error"]


def test_the_key_is_asked_for_here_too(settings: ScriptedSettings) -> None:
    with scripted_server(settings, FORERUN_API_KEY="s3cret") as locked:
        assert fetch(locked, "/api/cache", {"model": MODEL})[0] == 401


def test_a_budget_of_nothing_keeps_the_live_conversation(settings: ScriptedSettings) -> None:
    """02 STR-7: FORERUN_CACHE_BYTES=0 from the environment to the runner."""
    with scripted_server(settings, FORERUN_CACHE_BYTES="0") as server:
        ask(server, FIRST)
        assert cached(ask(server, FIRST, "water", "SAY:more")) > len(FIRST)
        ask(server, "what is the moon? " + 10 * "Tell me. " + "SAY:stone")
        report = cache(server)
        assert (report["budget"], report["snapshots"]) == (0, 0)
        assert cast(int, report["live_tokens"]) > len(SECOND)
        shared = len("_user\nwhat is the")
        assert cached(ask(server, FIRST, "water", "SAY:more")) <= shared
