"""The slash commands that act on the conversation and on what the model keeps."""

from types import SimpleNamespace

import pytest

from forerun.base.errors import RequestError
from forerun.cli.chat import Chat, Shown
from forerun.cli.run import parse_pairs
from forerun.cli.slash import SlashCommands
from forerun.protocol.cache import CacheReport
from forerun.protocol.requests import Message


def report(freed):
    numbers = dict.fromkeys(("budget", "snapshots", "live_tokens", "live_bytes"), 0)
    return CacheReport(context=8192, freed_bytes=freed, as_of_seconds=0.0, nodes=[], **numbers)


@pytest.fixture
def conversation():
    asked = []

    def cache(*, clear=False):
        asked.append(clear)
        return report(2_000_000 if clear else 0)

    chat = Chat(turns=[Message(role="user", content="hi")])
    return SimpleNamespace(model="m:latest", chat=chat, shown=Shown(), cache=cache, asked=asked)


def test_the_cache_is_shown_or_cleared(conversation, capsys):
    commands = SlashCommands(conversation)
    assert commands.run("/cache")
    shown = capsys.readouterr()
    assert shown.out.startswith("m:latest: 0 of 8,192 tokens live")
    assert shown.err == ""
    assert commands.run("/cache  clear ")
    assert capsys.readouterr().err == "(freed 2.0 MB)\n"
    assert conversation.asked == [False, True]


def test_a_new_conversation_leaves_the_model_what_it_holds(conversation, capsys):
    SlashCommands(conversation).run("/clear")
    assert conversation.chat.turns == []
    assert conversation.asked == []
    assert "/cache clear lets the model forget it" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["draft_layers 2,15,27", "draft_layers x", "draft_layers"])
def test_what_belongs_in_a_modelfile_is_no_parameter_of_a_conversation(conversation, line):
    with pytest.raises(RequestError, match="belongs in the model's Modelfile") as refused:
        SlashCommands(conversation).run(f"/set parameter {line}")
    assert "\n" not in str(refused.value)
    assert conversation.chat.options == {}


def test_what_belongs_in_a_modelfile_is_no_option_of_the_command_line():
    with pytest.raises(RequestError, match="draft_layers belongs in the model's Modelfile"):
        parse_pairs(("temperature=0", "draft_layers = 2"))


def test_a_misspelt_option_is_not_answered_with_one_that_is_refused(conversation):
    for ask in (
        lambda: parse_pairs(("draft_layer=1",)),
        lambda: SlashCommands(conversation).run("/set parameter draft_layer 1"),
    ):
        with pytest.raises(RequestError, match=r"'draft_layer'; the options are draft, ") as told:
            ask()
        assert "draft_layers" not in str(told.value)


def test_names_of_parameters_are_those_that_can_be_set(conversation):
    with pytest.raises(RequestError, match=r"names: .*draft, num_ctx"):
        SlashCommands(conversation).run("/set parameter")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("/cache now", "now"),
        ("/cache clear all", "clear all"),
        ("/clear cache", "cache"),
        ("/set verbose no", "no"),
        ("/set quiet please", "please"),
        ("/set nothink high", "high"),
    ],
)
def test_a_word_too_many_is_an_error_and_changes_nothing(conversation, line, word):
    conversation.shown.verbose = False
    with pytest.raises(RequestError, match=f"'{word}'"):
        SlashCommands(conversation).run(line)
    assert len(conversation.chat.turns) == 1
    assert not conversation.shown.verbose
    assert conversation.chat.think is None
    assert conversation.asked == []
