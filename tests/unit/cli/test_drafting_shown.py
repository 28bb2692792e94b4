"""`--draft`, `/set parameter draft`, and what `--verbose` tells of drafting (03 STA-2, DRF-8)."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner

from forerun.api.ollama.dialect import ChatDialect
from forerun.base.address import Address
from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject
from forerun.cli.chat import Chat, Shown, described
from forerun.cli.run import command
from forerun.cli.served import ServedPlace
from forerun.cli.slash import SlashCommands
from forerun.client.server import ServerClient
from forerun.protocol.events import Done, DraftDepth, Drafting, DraftPosition, Figures
from forerun.protocol.requests import CompletionRequest
from forerun.scheduler.runners import LoadOptions
from forerun.settings import Settings
from forerun.store.names import ModelName

DRAFTING = Drafting(
    drafter="lookup",
    rounds=10,
    drafted=25,
    accepted=20,
    positions=[
        DraftPosition(accepted=9, observed=10),
        DraftPosition(accepted=6, observed=8),
        DraftPosition(accepted=0, observed=0),
    ],
    depths=[DraftDepth(mean=1.0, largest=2), DraftDepth(mean=4.0, largest=7)],
)
FIGURES = Figures(
    prompt_tokens=10,
    cached_tokens=0,
    generated_tokens=30,
    prompt_seconds=1,
    generation_seconds=1,
    drafted_tokens=25,
    accepted_tokens=20,
    drafting=DRAFTING,
)


def rows(drafting: Drafting | None) -> dict[str, str]:
    lines = described(msgspec.structs.replace(FIGURES, drafting=drafting)).splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_verbose_tells_what_the_drafter_did() -> None:
    """STA-2: how much of it was taken, at each position of a round and over time."""
    told = rows(DRAFTING)
    assert told["drafted"] == "25 tokens in 10 rounds of lookup, 80% accepted"
    assert told["by position"] == "90% 75% of those compared"
    assert told["depth"] == "2.5 on average, 7 at most; over time 1.0 4.0"


def test_a_drafter_that_never_drafted_is_told_in_a_line() -> None:
    """STA-2: as where the prompt repeats nothing."""
    told = rows(Drafting(drafter="lookup", rounds=10, drafted=0, accepted=0))
    assert told["drafted"] == "nothing in 10 rounds of lookup"
    assert not {"by position", "depth"} & set(told)
    assert "drafted" not in rows(None)


class Answering:
    """A server as its client sees it: one answer, in the native dialect's own words."""

    def post(self, _path: str, _body: JsonObject) -> JsonObject:
        return {}

    def loaded(self) -> list[JsonObject]:
        return []

    def drafters(self, name: str) -> list[str]:
        return ["model", "lookup"] if name == "m:latest" else []

    def stream(self, _path: str, body: JsonObject) -> Iterator[JsonObject]:
        self.body = body
        yield json.loads(
            ChatDialect("m", time.monotonic()).done(Done(reason="stop", figures=FIGURES))
        )


def test_a_server_tells_as_much_as_a_runner() -> None:
    """STA-2, DRF-8: the statistics cross the server whole, and so does the option."""
    server = Answering()
    request = CompletionRequest(messages=[], options={"draft": "lookup"})
    with ServedPlace(server).opened(ModelName.parse("m"), LoadOptions()) as model:
        (done,) = model.complete(request)
    assert isinstance(done, Done)
    assert done.figures.drafting == DRAFTING
    assert server.body["options"] == {"draft": "lookup"}


def test_the_drafters_of_a_loaded_model_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """DRF-8: what a request may choose, as the runner tells it."""
    shown = ServedPlace(Answering()).section(ModelName.parse("m"), "info")
    assert "drafters    model, lookup" in shown.splitlines()
    client = ServerClient(Address())
    loaded = [{"name": "m:latest", "drafters": ["lookup"]}, {"name": "n:latest", "drafters": []}]
    monkeypatch.setattr(client, "loaded", lambda: loaded)
    assert [client.drafters(f"{name}:latest") for name in "mno"] == [["lookup"], [], []]


def test_a_conversation_chooses_its_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    """DRF-8"""
    conversation = SimpleNamespace(chat=Chat(), shown=Shown())
    commands = SlashCommands(conversation)
    commands.run("/set parameter draft lookup")
    assert conversation.chat.request("x").options == {"draft": "lookup"}
    with pytest.raises(
        RequestError, match="draft is 'fast'; it must be one of auto, model, lookup"
    ):
        commands.run("/set parameter draft fast")
    commands.run("/set parameter draft")
    assert conversation.chat.request("x").options == {}
    capsys.readouterr()


class Noting:
    """A place that tells what was asked of it."""

    def opened(self, _name: ModelName, _options: LoadOptions) -> "Noting":
        return self

    def __enter__(self) -> "Noting":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def complete(self, request: CompletionRequest) -> Iterator[Done]:
        self.request = request
        yield Done(reason="stop", figures=FIGURES)


def test_run_takes_the_drafter_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """DRF-8: `--draft NAME` wins over `-o draft=NAME`, and a name that is none ends in usage."""
    place = Noting()
    monkeypatch.setattr("forerun.cli.run.place_of", lambda _: place)
    arguments = ["m", "hi", "-o", "draft=model", "--draft", "off"]
    done = CliRunner().invoke(command, arguments, obj=Settings.from_environment({}))
    assert done.exit_code == 0, done.output
    assert place.request.options == {"draft": "off"}
    wrong = CliRunner().invoke(
        command, ["m", "hi", "--draft", "fast"], obj=Settings.from_environment({})
    )
    assert wrong.exit_code == 2
    assert "'auto', 'model', 'lookup', 'off'" in wrong.output
