"""What the doors tell of drafting, beside the fields that clients know (03 STA-2; 08 API-5, OAI-4).

The official clients' own types read each answer: what they do not know must not hurt them.
"""

import json
import time
from typing import Any

import msgspec
import ollama
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from forerun.api.metrics import Metrics
from forerun.api.ollama.dialect import ChatDialect as NativeChatDialect
from forerun.api.ollama.dialect import GenerateDialect
from forerun.api.openai.chat_dialect import ChatDialect
from forerun.api.openai.chat_wire import ChatRequest
from forerun.api.openai.completions_dialect import TextDialect
from forerun.api.openai.completions_wire import TextRequest
from forerun.api.openai.responses_dialect import ResponsesDialect
from forerun.api.openai.responses_wire import ResponsesRequest
from forerun.api.openai.sampling import SamplingFields, read_sampling
from forerun.base.errors import RequestError
from forerun.protocol.events import (
    Chunk,
    Done,
    DraftDepth,
    Drafting,
    DraftPosition,
    Figures,
)

FIGURES = Figures(
    prompt_tokens=10,
    cached_tokens=4,
    generated_tokens=9,
    prompt_seconds=1,
    generation_seconds=1,
    drafted_tokens=6,
    accepted_tokens=5,
    drafting=Drafting(
        drafter="lookup",
        rounds=4,
        drafted=6,
        accepted=5,
        positions=[
            DraftPosition(accepted=3, observed=3),
            DraftPosition(accepted=2, observed=3),
        ],
        depths=[DraftDepth(mean=1.5, largest=2)],
    ),
)
TOLD = {
    "drafter": "lookup",
    "rounds": 4,
    "drafted": 6,
    "accepted": 5,
    "positions": [{"accepted": 3, "observed": 3}, {"accepted": 2, "observed": 3}],
    "depths": [{"mean": 1.5, "largest": 2}],
}
DONE = Done(reason="stop", figures=FIGURES)
PLAIN = Done(reason="stop", figures=msgspec.structs.replace(FIGURES, drafting=None))
HI = Chunk(text="hi")


def usage(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)["usage"]
    return found


def test_the_native_api_tells_it_with_the_figures() -> None:
    """STA-2: in the last object, as a field that Ollama's own client drops."""
    chat = NativeChatDialect("m", time.monotonic())
    body = json.loads(chat.done(DONE))
    assert body["drafting"] == TOLD
    assert (body["drafted_count"], body["accepted_count"]) == (6, 5)
    assert ollama.ChatResponse(**body).eval_count == 9
    generated = json.loads(GenerateDialect("m", time.monotonic()).whole(HI, DONE))
    assert generated["drafting"] == TOLD
    assert ollama.GenerateResponse(**generated).response == "hi"


def test_openai_usage_tells_it_in_its_own_words_and_in_ours() -> None:
    """STA-2, OAI-4: what became of predicted tokens, and `drafting` beside it."""
    chat = ChatDialect("m", include_usage=True).whole(HI, DONE)
    text = TextDialect("m", include_usage=True).whole(HI, DONE)
    for body in (chat, text):
        assert usage(body)["drafting"] == TOLD
        details = usage(body)["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] == 5
        assert details["rejected_prediction_tokens"] == 1
    parsed = ChatCompletion.model_validate_json(chat, strict=True).usage
    assert parsed is not None
    assert parsed.completion_tokens == 9
    assert parsed.to_dict()["drafting"] == TOLD
    assert Completion.model_validate_json(text).choices[0].text == "hi"


def test_responses_tell_it_too() -> None:
    """STA-2, OAI-9"""
    dialect = ResponsesDialect(ResponsesRequest(model="m", input="x"))
    body = dialect.whole(HI, DONE)
    assert usage(body)["drafting"] == TOLD
    parsed = Response.model_validate_json(body).usage
    assert parsed is not None
    assert parsed.output_tokens == 9


def test_nothing_is_told_where_nothing_drafted() -> None:
    """GEN-3: `draft` off, or no drafter."""
    native = NativeChatDialect("m", time.monotonic()).done(PLAIN)
    chat = ChatDialect("m", include_usage=True).whole(HI, PLAIN)
    responses = ResponsesDialect(ResponsesRequest(model="m", input="x")).whole(HI, PLAIN)
    for body in (native, chat, responses):
        assert b'"drafting"' not in body


@pytest.mark.parametrize("kind", [ChatRequest, TextRequest, ResponsesRequest])
def test_v1_takes_the_option(kind: type[SamplingFields]) -> None:
    """DRF-8, GEN-3: `draft` as a field of our own; clients send it as an extra one."""
    body: dict[str, object] = {
        "model": "m",
        "draft": "off",
        "messages": [],
        "prompt": None,
        "input": "x",
    }
    assert read_sampling(msgspec.convert(body, kind), {})["draft"] == "off"
    body["draft"] = "fast"
    with pytest.raises(RequestError, match="draft is 'fast'; it must be one of auto, model"):
        read_sampling(msgspec.convert(body, kind), {})


def test_metrics_count_by_drafter() -> None:
    """STA-2"""
    metrics = Metrics()
    metrics.answered("m", "stop", FIGURES)
    metrics.answered("m", "stop", FIGURES)
    metrics.answered("m", "stop", PLAIN.figures)
    text = metrics.text().decode()
    for kind, count in (("rounds", 8), ("drafted", 12), ("accepted", 10)):
        line = f'forerun_drafting_total{{drafter="lookup",kind="{kind}",model="m"}} {count}.0'
        assert line in text.splitlines()
