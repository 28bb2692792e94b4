"""What a new model can do is recorded as it is made: 08 API-17, 07 MF-8."""

import json
import os

import pytest

from fixtures.qwen import wrapped_folder
from fixtures.tiny import tiny_folder, tiny_store
from forerun.base.errors import RequestError
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.store.modelfile import format_modelfile
from forerun.store.names import ModelName

THINKS = "TEMPLATE {{ messages[0].content }}<think>\n"
TOOLS = "TEMPLATE {{ tools }}<tool_call>{{ messages[0].content }}\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("store"))


def made(store, name, base, lines=""):
    request = CreateRequest(name=name, modelfile=f"FROM {base}\n{lines}", folder=".")
    with open(os.devnull, "wb") as unheard:
        create(request, store, Reporter(unheard.fileno()))
    return store.get(ModelName.parse(name)).config


def test_a_checkpoints_own_template_tells(store):
    assert store.get(ModelName.parse("tiny")).config.capabilities == ("completion",)


def test_a_template_in_the_tokenizers_config_counts_too(store, tmp_path):
    """06 TMP-5: also for a model over one that has it there, and with a PARSER from the start."""
    folder = tiny_folder(tmp_path / "checkpoint", "llama")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages[0].content }}<think>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert made(store, "first", folder).capabilities == ("completion", "thinking")
    assert made(store, "second", "first").capabilities == ("completion", "thinking")
    assert made(store, "third", folder, "PARSER hermes\n").capabilities == ("completion",)


def test_a_model_over_another_has_what_its_own_template_gives(store):
    """A new TEMPLATE counts, then its base's, whatever lies between."""
    assert made(store, "thinker", "tiny", THINKS).capabilities == ("completion", "thinking")
    assert made(store, "same", "thinker", "SYSTEM be\n").capabilities == ("completion", "thinking")
    assert made(store, "caller", "thinker", TOOLS).capabilities == ("completion", "tools")
    assert made(store, "plain", "thinker", 'TEMPLATE ""\n').capabilities == ("completion",)


def test_a_parser_stays_with_the_models_over_it(store):
    assert made(store, "named", "tiny", "PARSER qwen3\n").capabilities == ("completion", "thinking")
    later = made(store, "later", "named", TOOLS)
    assert (later.parser, later.capabilities) == ("qwen3", ("completion", "tools", "thinking"))
    assert made(store, "reset", "named", 'PARSER ""\n').capabilities == ("completion",)


def test_an_unknown_parser_is_refused_before_anything_is_written(store):
    """08 API-17: a Modelfile may not claim what the code cannot do."""
    with pytest.raises(RequestError, match="PARSER is 'mine'; it must be one of think, hermes"):
        made(store, "claims", "tiny", "PARSER mine\n")
    assert not store.exists(ModelName.parse("claims"))


def recorded(config):
    return config.parser, config.renderer, config.capabilities


def test_an_import_records_how_its_family_is_spoken_with(store, tmp_path):
    """07 CAP-2, CAP-4, CAP-5: from a folder; the words of a PARSER and RENDERER stand (CAP-3)."""
    folder = tiny_folder(tmp_path / "checkpoint", "qwen3")
    assert recorded(made(store, "family", folder)) == ("qwen3", "qwen3", ("completion",))
    own = made(store, "own", folder, "PARSER hermes\nRENDERER drawn\n" + TOOLS)
    assert recorded(own) == ("hermes", "drawn", ("completion", "tools"))


def test_what_a_base_says_because_of_its_template_goes_with_it(store, tmp_path):
    """07 CAP-2, CAP-3: a new TEMPLATE tells anew, but what a Modelfile named stays."""
    folder = tiny_folder(tmp_path / "checkpoint", "qwen3")
    coder = "TEMPLATE {{ tools }}<tool_call><function=f>{{ messages[0].content }}\n"
    thinker = "TEMPLATE {{ tools }}<tool_call>{{ messages[0].content }}<think>\n"
    able = ("completion", "tools")
    first = made(store, "coder", folder, coder)
    assert recorded(first) == ("qwen3-coder", "qwen3-coder", able)
    assert recorded(made(store, "settled", "coder", "SYSTEM be\n")) == recorded(first)
    later = made(store, "thinker", "coder", thinker)
    assert recorded(later) == ("qwen3", "qwen3", (*able, "thinking"))
    made(store, "stated", folder, "PARSER qwen3\nRENDERER drawn\n" + thinker)
    assert recorded(made(store, "changed", "stated", coder)) == (*("qwen3-coder", "drawn", able),)
    made(store, "fixed", folder, "PARSER hermes\n" + thinker)
    assert recorded(made(store, "kept", "fixed", coder)) == ("hermes", "qwen3-coder", able)


def test_the_modelfile_that_show_writes_makes_the_same_model(store, tmp_path):
    """08 API-2, 07 CAP-1, CAP-3: the parser in it claims nothing that the first model did not."""
    folder = tiny_folder(tmp_path / "checkpoint", "qwen3")
    first = made(store, "first-of-all", folder)
    text = format_modelfile(store.get(ModelName.parse("first-of-all")))
    assert "PARSER qwen3" in text
    _, _, lines = text.partition("FROM ")
    _, _, lines = lines.partition("\n")
    assert recorded(made(store, "second-of-all", "first-of-all", lines)) == recorded(first)
    assert recorded(made(store, "third-of-all", folder, lines)) == recorded(first)


def test_a_hybrid_with_a_tower_is_told_by_its_family(store, tmp_path):
    """06 QWN-18, 07 CAP-1, CAP-2: also where its text is wrapped; no picture is promised."""
    folder = wrapped_folder(tmp_path / "checkpoint", "qwen3_5")
    (folder / "chat_template.jinja").write_text(
        "{{ tools }}<tool_call><function=f>{{ messages[0].content }}<think>"
    )
    able = ("completion", "tools", "thinking")
    assert recorded(made(store, "wrapped", folder)) == ("qwen3.5", "qwen3.5", able)
