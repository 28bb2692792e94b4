"""Modelfiles (07 MF): commands, quoting, types, and errors that say in which line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.base.errors import NotFoundError, RequestError
from forerun.store.manifest import (
    LICENSE,
    MESSAGES,
    PARAMS,
    SYSTEM,
    TEMPLATE,
    Manifest,
    ModelConfig,
)
from forerun.store.messages import Message, encode_messages
from forerun.store.modelfile import format_modelfile, parse_modelfile, read_modelfile
from forerun.store.names import ModelName
from forerun.store.parameters import RETIRED, encode_parameters
from forerun.store.store import Store

FULL = '''
# a comment
from ./weights
Draft ../head
PARAMETER temperature 0.5
PARAMETER num_ctx 4096
PARAMETER use_mmap TRUE
PARAMETER stop "<|im_end|>"
PARAMETER stop """a
b"""
PARAMETER logit_bias 5:1.5,7:-2
PARAMETER draft lookup

TEMPLATE """{% for m in messages %}
{{ m.content }}  """
SYSTEM You are "brief".
LICENSE """
Apache
"""
LICENSE MIT
ADAPTER ./lora
MESSAGE user hi there
message ASSISTANT "ho"
RENDERER qwen3
PARSER qwen3
REQUIRES 0.19.0
'''


def test_every_command_is_read() -> None:
    """MF-1, MF-2, MF-3."""
    modelfile = parse_modelfile(FULL)
    assert modelfile.source == "./weights"
    assert modelfile.draft == "../head"
    assert modelfile.parameters == {
        "temperature": 0.5,
        "num_ctx": 4096,
        "use_mmap": True,
        "stop": ["<|im_end|>", "a\nb"],
        "logit_bias": {5: 1.5, 7: -2.0},
        "draft": "lookup",
    }
    assert modelfile.template == "{% for m in messages %}\n{{ m.content }}  "
    assert modelfile.system == 'You are "brief".'
    assert modelfile.licenses == ("\nApache\n", "MIT")
    assert modelfile.messages == (Message("user", "hi there"), Message("assistant", "ho"))
    assert (modelfile.renderer, modelfile.parser, modelfile.requires) == ("qwen3",) * 2 + (
        "0.19.0",
    )
    assert modelfile.warnings == ("Modelfile line 21: ADAPTER has no effect",)


def test_what_is_not_said_is_none() -> None:
    modelfile = parse_modelfile("FROM a")
    assert (modelfile.template, modelfile.system, modelfile.draft) == (None, None, None)
    assert (modelfile.renderer, modelfile.parser, modelfile.requires) == (None, None, None)
    assert parse_modelfile('FROM a\nSYSTEM ""').system == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\n\nFORM b", "line 3: unknown command 'FORM'; the commands are FROM"),
        ("FROM", "line 1: FROM has no value"),
        ('FROM ""', "line 1: FROM has no value"),
        ("FROM a\nPARAMETER", "line 2: PARAMETER has no value"),
        ("FROM a\nPARAMETER top_k", "line 2: PARAMETER top_k has no value"),
        (
            "FROM a\nPARAMETER top_k many",
            "line 2: option top_k is 'many'; it must be a whole number",
        ),
        ("FROM a\nPARAMETER top_k 1.5", "line 2: option top_k is '1.5'"),
        ("FROM a\nPARAMETER temperature nan", "line 2: option temperature is nan"),
        ("FROM a\nPARAMETER temperature -1", "line 2: option temperature is -1.0"),
        ("FROM a\nPARAMETER use_mmap yes", "line 2: option use_mmap is 'yes'; it must be true or"),
        ("FROM a\nPARAMETER temprature 1", "line 2: unknown option 'temprature'"),
        (
            "FROM a\nMESSAGE tool x",
            "line 2: MESSAGE role is 'tool'; it must be system, user, assist",
        ),
        ("FROM a\nMESSAGE user", "line 2: MESSAGE user has no value"),
        ('FROM a\n\n\nSYSTEM """never\nclosed', "line 4: the .* that opens here is not closed"),
        ('FROM a\nSYSTEM "half', "line 2: a value that starts with"),
        ('FROM a\nSYSTEM "half" of it', "line 2: a value that starts with"),
        ("FROM a\nFROM b", "line 2: FROM stands in line 1 already"),
        ("FROM a\nSYSTEM b\nsystem c", "line 3: SYSTEM stands in line 2 already"),
        ("SYSTEM a", "has no FROM line"),
        ("", "has no FROM line"),
        ("DRAFT ./head", "has no FROM line"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str) -> None:
    """MF-1, MF-2, 08 OPT; issue 2: a bad Modelfile line with its number."""
    with pytest.raises(RequestError, match=message) as caught:
        parse_modelfile(text)
    assert "\n" not in str(caught.value)


def test_a_missing_from_may_stand_for_the_folder() -> None:
    """MF-3; MF-4: but a draft never stands alone."""
    assert parse_modelfile("SYSTEM x", default_source=".").source == "."
    assert parse_modelfile("FROM a", default_source=".").source == "a"
    with pytest.raises(RequestError, match="no FROM"):
        parse_modelfile("DRAFT ./head", default_source=".")


def test_lists_accumulate_and_other_parameters_give_way() -> None:
    """MF-2."""
    text = "FROM a\nPARAMETER stop x\nPARAMETER top_k 1\nPARAMETER stop y\nPARAMETER top_k 2"
    assert parse_modelfile(text).parameters == {"stop": ["x", "y"], "top_k": 2}


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_retired_parameters_are_ignored(name: str) -> None:
    """MF-2: whatever their value."""
    modelfile = parse_modelfile(f"FROM a\nPARAMETER {name} anything")
    assert modelfile.parameters == {}
    assert name in modelfile.warnings[0]


def test_text_keeps_its_spaces_and_lines_but_not_windows_line_ends() -> None:
    """MF-1: a byte order mark and CRLF are an editor's business."""
    modelfile = parse_modelfile('\ufeffFROM a\r\nSYSTEM """ x \r\n  # y\r\n\r\n z """  \r\n')
    assert modelfile.system == " x \n  # y\n\n z "


def test_a_go_template_is_refused_with_its_line() -> None:
    """06 TMP-5, MF-3."""
    with pytest.raises(RequestError, match=r"line 2: TEMPLATE is written in Go's.*Jinja"):
        parse_modelfile("FROM a\nTEMPLATE {{ .Prompt }}")


def test_a_jinja_template_is_kept_as_it_is() -> None:
    """06 TMP-5."""
    template = "{% for block in message.content %}{{ block.text }}{% endfor %}{{ end }}"
    assert parse_modelfile(f"FROM a\nTEMPLATE {template}").template == template


@pytest.mark.parametrize("version", ["0.19.0", "v0.19.1", "0.20.0", "0.20.0-rc1", "0.19.0+build"])
def test_requires_in_range_is_kept(version: str) -> None:
    """MF-5, CFG-7."""
    assert parse_modelfile(f"FROM a\nREQUIRES {version}").requires == version


@pytest.mark.parametrize("version", ["0.18.9", "0.19.0-rc1", "0.20.1", "1.0.0", "0.21.0-alpha"])
def test_requires_out_of_range_states_both_versions(version: str) -> None:
    """MF-5, CFG-7: ours is never compared."""
    with pytest.raises(RequestError, match=rf"line 2.*{version}.*0\.20\.0.*0\.19\.0"):
        parse_modelfile(f"FROM a\nREQUIRES {version}")


@pytest.mark.parametrize(
    "version", ["1", "0.19", "0.19.x", "0.019.0", "latest", "0.19.0-", "9" * 5000]
)
def test_requires_must_be_a_version(version: str) -> None:
    """MF-5."""
    with pytest.raises(RequestError, match=r"line 2: REQUIRES .* is not a version"):
        parse_modelfile(f"FROM a\nREQUIRES {version}")


def test_a_file_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    with pytest.raises(NotFoundError, match="no Modelfile at"):
        read_modelfile(path)
    path.write_bytes("FROM a\nSYSTEM ü".encode())
    assert read_modelfile(path).system == "ü"
    path.write_bytes(b"FROM a\nSYSTEM \xff")
    with pytest.raises(RequestError, match="line 2: not UTF-8"):
        read_modelfile(path)
    path.write_bytes(b"")
    assert read_modelfile(path, default_source=".").source == "."
    with pytest.raises(RequestError, match="cannot read"):
        read_modelfile(tmp_path)


def test_a_stored_model_is_shown_as_a_modelfile(store: Store, put: Callable[..., Manifest]) -> None:
    """08 API-2: `show --modelfile` gives what makes the same model again."""
    original = parse_modelfile(FULL)
    put(
        "a:1",
        config=ModelConfig(requires="0.19.0", parser="qwen3", renderer="qwen3"),
        extra={
            TEMPLATE: (original.template or "").encode(),
            SYSTEM: (original.system or "").encode(),
            PARAMS: encode_parameters(original.parameters),
            MESSAGES: encode_messages(original.messages),
            LICENSE: original.licenses[0].encode(),
        },
    )
    text = format_modelfile(store.get(ModelName.parse("a:1")))
    again = parse_modelfile(text)
    assert again.source == "a:1"
    assert again.parameters == original.parameters
    assert (again.template, again.system) == (original.template, original.system)
    assert (again.messages, again.licenses) == (original.messages, original.licenses[:1])
    assert (again.renderer, again.parser, again.requires) == ("qwen3", "qwen3", "0.19.0")


def test_a_modelfile_is_written_as_it_was_read() -> None:
    """MF-1: what `/save` writes."""
    modelfile = replace(parse_modelfile(FULL), warnings=())
    assert parse_modelfile(format_modelfile(modelfile)) == modelfile


def test_a_text_that_no_modelfile_can_hold_is_said_to_be_left_out(
    store: Store, put: Callable[..., Manifest]
) -> None:
    put("a:1", extra={SYSTEM: b'quotes """\nand more'})
    text = format_modelfile(store.get(ModelName.parse("a:1")))
    assert "# SYSTEM cannot be written" in text
    assert parse_modelfile(text).system is None
