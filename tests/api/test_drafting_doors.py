"""Drafting through every door, with a real runner behind it (03 DRF-8, GEN-3, GEN-6, STA-2).

A script that repeats itself is what lookup is for, and a scripted model has no other drafter.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import forerun
from fixtures.scripted import ScriptedSettings, scripted_store
from fixtures.scripted_model import register
from fixtures.server import Server, scripted_server

MODEL, PLAIN = "scripted", "plain"
SCRIPT = "one two three four " * 12
SAID = f"STEP_MS=5 SAY:{SCRIPT}"  # a forward of any width takes as long, so that drafting pays
TURN = [{"role": "user", "content": SAID}]
SOME = 20  # tokens of it: how many more is a matter of time
OFFERED = "this model offers auto, lookup, off"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ScriptedSettings:
    return scripted_store(tmp_path_factory.mktemp("drafting"))


@pytest.fixture(scope="module")
def server(settings: ScriptedSettings) -> Iterator[Server]:
    with scripted_server(settings) as server:
        made = {"from": MODEL, "parameters": {"draft": "off"}}
        assert post(server, "/api/create", model=PLAIN, **made)[0] == 200
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server: Server, path: str, **body: object) -> tuple[int, dict[str, Any]]:
    data = json.dumps({"model": MODEL, "stream": False, **body}).encode()
    try:
        with urllib.request.urlopen(f"{server.url}{path}", data, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def chat(server: Server, **options: object) -> dict[str, Any]:
    status, body = post(server, "/api/chat", messages=TURN, options=options)
    assert status == 200, body
    assert body["message"]["content"] == SCRIPT
    return body


def drafted(told: dict[str, Any]) -> None:
    """Some of the script came in rounds of lookup, and all of it is accounted for."""
    assert told["drafter"] == "lookup"
    assert 0 < told["rounds"] < len(SCRIPT)
    assert told["accepted"] > SOME
    assert told["drafted"] >= told["accepted"]
    assert sum(each["accepted"] for each in told["positions"]) == told["accepted"]
    assert 1 <= len(told["depths"]) <= 8
    assert len(told["positions"]) <= max(each["largest"] for each in told["depths"])


@pytest.mark.parametrize("options", [{}, {"draft": "auto"}, {"draft": "lookup"}])
def test_the_native_api_drafts_and_tells_so(server: Server, options: dict[str, object]) -> None:
    """GEN-3, DRF-8, STA-2: by default, and where a request names the drafter."""
    body = chat(server, **options)
    drafted(body["drafting"])
    told = body["drafting"]
    assert (body["drafted_count"], body["accepted_count"]) == (told["drafted"], told["accepted"])


def test_a_request_switches_it_off(server: Server) -> None:
    """GEN-3, GEN-6: the text is the same."""
    body = chat(server, draft="off")
    assert (body["drafted_count"], body["accepted_count"]) == (0, 0)
    assert "drafting" not in body


def test_a_model_switches_it_off(server: Server) -> None:
    """GEN-3, DRF-8: by PARAMETER draft off, for requests that do not say otherwise."""
    status, body = post(server, "/api/chat", model=PLAIN, messages=TURN)
    assert (status, body["message"]["content"]) == (200, SCRIPT)
    assert "drafting" not in body
    asked = {"messages": TURN, "options": {"draft": "lookup"}}
    status, body = post(server, "/api/chat", model=PLAIN, **asked)
    assert (status, body["message"]["content"]) == (200, SCRIPT)
    drafted(body["drafting"])


def refused_by_v1(client: openai.OpenAI, extra: dict[str, str], match: str) -> None:
    for ask in (
        lambda: client.chat.completions.create(model=MODEL, messages=TURN, extra_body=extra),
        lambda: client.completions.create(model=MODEL, prompt="x", extra_body=extra),
        lambda: client.responses.create(model=MODEL, input="x", extra_body=extra),
    ):
        with pytest.raises(openai.BadRequestError, match=match):
            ask()


def test_a_drafter_that_is_not_bound_is_refused_by_every_door(
    server: Server, client: openai.OpenAI
) -> None:
    """DRF-8"""
    asked = {"options": {"draft": "model"}}
    for path, prompt in (("/api/chat", {"messages": TURN}), ("/api/generate", {"prompt": "x"})):
        status, body = post(server, path, **prompt, **asked)
        assert (status, body["error"]) == (400, f"draft is 'model'; {OFFERED}")
    refused_by_v1(client, {"draft": "model"}, OFFERED)


def test_the_layers_of_a_head_are_refused_by_every_door(
    server: Server, client: openai.OpenAI
) -> None:
    """03 EGL-3: a Modelfile says them; a request, though it only loads, is told so."""
    misplaced = "option draft_layers belongs in the model's Modelfile"
    asked = {"options": {"draft_layers": "1"}}
    for path, body in (
        ("/api/chat", {"messages": TURN}),
        ("/api/chat", {}),
        ("/api/generate", {"prompt": "x"}),
        ("/api/generate", {"prompt": "x", "raw": True}),
        ("/api/generate", {}),
        ("/api/embed", {"input": "x"}),
        ("/api/embeddings", {"prompt": "x"}),
    ):
        status, told = post(server, path, **body, **asked)
        assert (status, told["error"][: len(misplaced)]) == (400, misplaced), path
        assert "\n" not in told["error"]
    refused_by_v1(client, {"draft_layers": "1"}, misplaced)


def test_python_refuses_the_layers_of_a_head(
    settings: ScriptedSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """03 EGL-3: at each call. A load has no options, and what it does not know is a TypeError."""
    monkeypatch.setenv("FORERUN_MODELS", str(settings.models))
    register()
    misplaced = r"draft_layers belongs in the model's Modelfile"
    with pytest.raises(TypeError, match="unexpected keyword argument 'draft_layers'"):
        forerun.load(MODEL, draft_layers="1")  # type: ignore[call-arg]
    with forerun.load(MODEL) as model:
        with pytest.raises(forerun.errors.RequestError, match=misplaced):
            model.generate("x", draft_layers="1")
        with pytest.raises(forerun.errors.RequestError, match=misplaced):
            model.chat(TURN, draft_layers="1")


def test_openai_clients_read_it_in_usage(client: openai.OpenAI) -> None:
    """GEN-3, STA-2: whole, streamed, and not where it is off."""
    usage = client.chat.completions.create(model=MODEL, messages=TURN).usage
    assert usage is not None
    told = usage.to_dict()["drafting"]
    drafted(told)
    assert usage.completion_tokens_details is not None
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == told["accepted"]
    assert details.rejected_prediction_tokens == told["drafted"] - told["accepted"]
    *_, last = client.chat.completions.create(
        model=MODEL, messages=TURN, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage is not None
    drafted(last.usage.to_dict()["drafting"])
    off = client.chat.completions.create(model=MODEL, messages=TURN, extra_body={"draft": "off"})
    assert off.usage is not None
    assert off.usage.completion_tokens_details is None
    assert off.choices[0].message.content == SCRIPT


def test_responses_tell_it_too(client: openai.OpenAI) -> None:
    """STA-2"""
    answer = client.responses.create(model=MODEL, input=SAID)
    assert answer.usage is not None
    drafted(answer.usage.to_dict()["drafting"])


def test_the_server_tells_what_is_bound_and_counts_what_it_did(server: Server) -> None:
    """DRF-8, STA-2: /api/ps, /metrics and the log."""
    told = chat(server)["drafting"]
    with urllib.request.urlopen(f"{server.url}/api/ps", timeout=20) as answer:
        loaded = json.loads(answer.read())["models"]
    bound = {model["name"]: model["drafters"] for model in loaded}
    assert bound[f"{MODEL}:latest"] == ["lookup"]
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    for kind in ("rounds", "drafted", "accepted"):
        labels = f'drafter="lookup",kind="{kind}",model="{MODEL}:latest"'
        found = re.search(rf"forerun_drafting_total\{{{labels}\}} (\S+)", text)
        assert found is not None
        assert float(found[1]) >= told[kind]
    line = next(line for line in reversed(server.log.splitlines()) if ": request " in line)
    assert f"drafter=lookup rounds={told['rounds']} drafted_tokens={told['drafted']}" in line


def test_python_tells_it_with_done(
    settings: ScriptedSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STA-2, GEN-3: `forerun.load`, with a choice for the model and one for each call."""
    monkeypatch.setenv("FORERUN_MODELS", str(settings.models))
    register()
    with forerun.load(MODEL, draft="off") as model:
        *_, plain = model.chat(TURN)
        *_, done = model.chat(TURN, draft="lookup")
    assert isinstance(plain, forerun.Done)
    assert isinstance(done, forerun.Done)
    assert plain.figures.drafting is None
    told = done.figures.drafting
    assert told is not None
    assert (told.drafter, told.accepted) == ("lookup", done.figures.accepted_tokens)
    assert told.accepted > SOME
