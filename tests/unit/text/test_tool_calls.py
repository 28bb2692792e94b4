"""Tool calls apart from text, in each notation: 08 PAR-1, API-10; cases D15, E05."""

import json
import time

import pytest

from forerun.chat.dialects.tools import MAX_DEPTH, Tools
from unit.text.reading import BLOCKS, FOUND, channels, read

HERMES, LLAMA, MARKED = BLOCKS["hermes"], BLOCKS["llama3"], BLOCKS["functiongemma"]
NOTATIONS = list(BLOCKS.items())


@pytest.mark.parametrize(("dialect", "block"), NOTATIONS)
def test_a_call_is_read(dialect, block):
    """API-10: its arguments are an object, in the order in which they were written."""
    thinking, text, calls = read(dialect, block)
    assert (thinking, text, calls) == ("", "", [FOUND])
    assert list(calls[0][1]) == ["city", "days"]


@pytest.mark.parametrize(("dialect", "block"), [*NOTATIONS, ("llama3", f"\n<|python_tag|>{LLAMA}")])
def test_a_call_in_two_pieces_is_read(dialect, block):
    """PAR-1: wherever a tag is split."""
    for cut in range(len(block)):
        assert read(dialect, block[:cut], block[cut:]) == ("", "", [FOUND])


@pytest.mark.parametrize(("dialect", "block"), NOTATIONS)
@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
def test_several_calls_are_read_without_the_newlines_around_them(dialect, block, between):
    """Case E05: each is a call of its own, and nothing of them is content."""
    raw = f"\n{block}{between}{block}\n\n"
    assert read(dialect, raw) == ("", "", [FOUND, FOUND])


@pytest.mark.parametrize(("dialect", "block"), [each for each in NOTATIONS if each[0] != "llama3"])
def test_text_around_calls_stays_in_order(dialect, block):
    parser = channels(dialect)
    pieces = parser.push(f"I look.\n\n{block}\n\nDone.\n") + parser.finish()
    said = [piece.text or [call.name for call in piece.calls] for piece in pieces]
    assert [each for each in said if each] == ["I look.", ["find"], "Done.", "\n"]


@pytest.mark.parametrize(("dialect", "block"), NOTATIONS)
def test_a_call_cut_anywhere_is_plain_text(dialect, block):
    """Case D15: cut by the budget it comes out whole, as text, and nothing is raised."""
    for length in range(len(block)):
        assert read(dialect, block[:length]) == ("", block[:length], [])


@pytest.mark.parametrize(("dialect", "block"), NOTATIONS)
def test_without_tools_in_the_request_calls_are_text(dialect, block):
    assert read(dialect, block, tools=False)[1:] == (block, [])


def test_each_call_has_an_id_of_its_own():
    """API-10, case E05: call_ and 8 letters or digits."""
    parser = channels("hermes")
    ids = [call.id for piece in parser.push(HERMES * 2) for call in piece.calls]
    assert len(set(ids)) == 2
    for each in ids:
        assert each.startswith("call_")
        assert len(each) == 13
        assert each[5:].isalnum()
        assert each == each.lower()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "find",
        "[]",
        '{"name": "find", "arguments": {"city": "Köln"}',
        '{"name": "find", "arguments": "Köln"}',
        '{"name": "find", "arguments": [1]}',
        '{"name": 3, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "find", "arguments": {"days": NaN}}',
        '{"name": "find", "arguments": {"days": 1e999}}',
        '{"name": "find", "arguments": {"city": "\\ud800"}}',
        '{"name": "find", "arguments": {"city": "Köln}}',
        '{"name": "find", "arguments": {"a": ' + "[" * 3000 + "]" * 3000 + "}}",
        "<function=find>",
        "<function=find><parameter=city>Köln</function>",
        "<function=find>Köln</function>",
    ],
)
def test_a_block_that_is_no_call_is_text_and_the_next_one_is_read(body):
    """Case D15: bad JSON, unknown shapes, and what no JSON can say."""
    block = f"<tool_call>\n{body}\n</tool_call>\n"
    assert read("hermes", f"a\n{block}\n{HERMES}") == ("", f"a\n{block.rstrip()}", [FOUND])


def test_a_malformed_block_is_given_out_as_soon_as_it_ends():
    """A string does not cross lines: a quote too many holds back nothing that follows."""
    block = '<tool_call>\n{"name": "find}\n</tool_call>'
    parser = channels("hermes")
    assert "".join(piece.text for piece in parser.push(f"{block} so")) == f"{block} so"


@pytest.mark.parametrize(("depth", "is_call"), [(MAX_DEPTH - 1, True), (MAX_DEPTH, False)])
def test_arguments_may_be_so_deep(depth, is_call):
    """What writes an answer down must not fail on the nesting of a call."""
    value = "[" * depth + "]" * depth
    block = f'<tool_call>{{"name": "find", "arguments": {{"a": {value}}}}}</tool_call>'
    assert bool(read("hermes", block)[2]) == is_call


def test_arguments_may_be_missing():
    assert read("hermes", '<tool_call>{"name": "stop_all"}</tool_call>')[2] == [("stop_all", {})]


@pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", '"</tool_call>\\', "```", "}{"])
def test_tags_inside_a_string_end_nothing(text):
    arguments = {"city": text, "more": {"a": [text]}}
    written = json.dumps({"name": "find", "arguments": arguments})
    assert read("hermes", f"<tool_call>{written}</tool_call>")[2] == [("find", arguments)]
    assert read("llama3", written)[2] == [("find", arguments)]
    if "\\" not in text:
        python = f"```tool_code\nfind(city='{text}')\n```"
        marked = MARKED.replace("Köln", text + "<end_function_call>")
        assert read("functiongemma", marked)[2][0][1]["city"] == text + "<end_function_call>"
        assert ("```" in text) or read("gemma3", python)[2] == [("find", {"city": text})]


def xml(**arguments):
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function=find>\n{parameters}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("city", "12", "12"),
        ("city", "  a \n\n b ", "  a \n\n b "),
        ("city", "true", "true"),
        ("city", "a </parameter> b </tool_call> c", "a </parameter> b </tool_call> c"),
        ("city", "", ""),
        ("days", "12", 12),
        ("days", "many", "many"),
        ("ratio", "1.5", 1.5),
        ("exact", "True", True),
        ("exact", "false", False),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("more", '{"b": 1, "a": [2]}', {"b": 1, "a": [2]}),
        ("either", "None", None),
        ("either", "3", 3),
        ("mixed", "3", "3"),
        ("maybe", "3", 3),
        ("unknown", "3", "3"),
    ],
)
def test_xml_values_have_the_types_of_the_tools_schema(key, written, value):
    """A string stays a string, stripped of nothing; the rest is parsed as JSON."""
    assert read("qwen3-coder", xml(**{key: written})) == ("", "", [("find", {key: value})])


def test_xml_without_parameters():
    assert read("qwen3-coder", "<tool_call><function=stop_all></function></tool_call>")[2] == [
        ("stop_all", {})
    ]


@pytest.mark.parametrize(
    "raw",
    [
        f"<|python_tag|>{LLAMA}",
        f"\n <|python_tag|>\n{LLAMA}",
        f" {LLAMA.replace('parameters', 'arguments')}",
        LLAMA.replace("{", '{"type": "function", ', 1),
    ],
)
def test_llamas_calls_at_the_start(raw):
    assert read("llama3", raw) == ("", "", [FOUND])


def test_llamas_calls_one_after_another():
    raw = f"<|python_tag|>{LLAMA}; {LLAMA};\n<|python_tag|>{LLAMA}\n{LLAMA}\n"
    assert read("llama3", raw) == ("", "", [FOUND] * 4)


@pytest.mark.parametrize(
    "raw",
    [
        LLAMA.replace("find", "other"),
        f"So: {LLAMA}",
        f'{{"answer": 1}} {LLAMA}',
        "{1}",
        "<|python_tag|>print(1)",
        "\n",
        "<|python",
        '{"name": "find", "parameters": 3}',
    ],
)
def test_what_is_no_call_of_a_tool_is_text_to_its_end(raw):
    assert read("llama3", raw) == ("", raw, [])


@pytest.mark.parametrize(
    ("after", "text"), [("\nDone.", "Done."), ("; Done.", "; Done."), (" Done.\n", " Done.\n")]
)
def test_what_follows_llamas_calls_is_text(after, text):
    assert read("llama3", LLAMA + after + LLAMA) == ("", text + LLAMA, [FOUND])


def test_an_answer_in_json_is_not_held_back():
    """Its first key tells that it is no call."""
    parser = channels("llama3")
    assert [piece.text for piece in parser.push('{"answer": "a')] == ['{"answer": "a']
    assert [piece.text for piece in parser.push(" long")] == [" long"]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("", {}),
        ("exact:true,either:None,ratio:-1.5", {"exact": True, "either": None, "ratio": -1.5}),
        (
            "more:{a:<escape>x<escape>,<escape>b c<escape>:[1,<escape>{,}<escape>]}",
            {"more": {"a": "x", "b c": [1, "{,}"]}},
        ),
        ("city:<escape> a\n\"b' <escape>", {"city": " a\n\"b' "}),
        ("tags:[],more:{}", {"tags": [], "more": {}}),
        ("tags:[" + "[]," * 150 + "]", {"tags": [[]] * 150}),
    ],
)
def test_function_gemmas_values(written, arguments):
    raw = f"<start_function_call>call:find{{{written}}}<end_function_call>"
    assert read("functiongemma", raw) == ("", "", [("find", arguments)])


@pytest.mark.parametrize(
    "body",
    [
        "find{}",
        "call:find",
        "call:find{city:Köln}",
        "call:find{city}",
        "call:find{days:1}}",
        "call:find{days:" + "[" * 5000 + "]" * 5000 + "}",
        "call:{}",
        "call:find{days:1,,}",
    ],
)
def test_what_function_gemma_did_not_mean_is_text(body):
    raw = f"<start_function_call>{body}<end_function_call>"
    assert read("functiongemma", raw) == ("", raw, [])


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ("find(city='a \\'b\\' \\n \\u00e9 \\d')", [("find", {"city": "a 'b' \n é \\d"})]),
        (
            "find(days=1, exact=True,)\nstop_all()",
            [("find", {"days": 1, "exact": True}), ("stop_all", {})],
        ),
        (
            "[find(tags=['a', \"b\"]), stop_all()]",
            [("find", {"tags": ["a", "b"]}), ("stop_all", {})],
        ),
        ("find(more={'a': None}); stop_all()", [("find", {"more": {"a": None}}), ("stop_all", {})]),
        ('{"name": "find", "parameters": {"days": 1}}', [("find", {"days": 1})]),
    ],
)
@pytest.mark.parametrize("fence", ["tool_code", "tool_call"])
def test_fenced_calls(fence, body, calls):
    assert read("gemma3", f"```{fence}\n{body}\n```") == ("", "", calls)


@pytest.mark.parametrize(
    "body",
    [
        "other(a=1)",
        "find('Köln')",
        "x = find(days=1)",
        "print(1)",
        "",
        "find(days=1",
        "[find()",
        "[find()] and",
    ],
)
def test_other_code_in_a_fence_is_text(body):
    raw = f"```tool_code\n{body}\n```\nDone."
    assert read("gemma3", raw) == ("", raw, [])


def test_a_fence_of_another_language_is_text():
    assert read("gemma3", "```python\nfind()\n```") == ("", "```python\nfind()\n```", [])


def test_calls_after_thinking():
    raw = f"<think>\nlet me see {HERMES}\n</think>\n\nLooking.\n{HERMES}"
    assert read("qwen3", raw) == (f"let me see {HERMES}", "Looking.", [FOUND])


@pytest.mark.parametrize(
    ("dialect", "beginning"),
    [
        ("hermes", '<tool_call>{"name": "find", "arguments": {"city": "'),
        ("qwen3-coder", "<tool_call>\n<function=find>\n<parameter=city>\n"),
        ("llama3", '{"name": "find", "parameters": {"city": "'),
        ("functiongemma", "<start_function_call>call:find{city:<escape>"),
        ("gemma3", '```tool_code\nfind(city="'),
    ],
)
def test_a_long_call_is_not_read_anew_with_every_token(dialect, beginning):
    """08 PAR-1: the device thread waits for this; 20,000 tokens took 20 s."""
    parser = channels(dialect)
    parser.push(beginning)
    started = time.process_time()
    assert not any(parser.push("abc ") for _ in range(20_000))
    assert time.process_time() - started < 6


@pytest.mark.parametrize("tool", [{}, {"function": 3}, {"name": "find"}, {"function": {"name": 1}}])
def test_malformed_tools_have_no_schema(tool):
    assert Tools.of([tool]).types("find", "a") == frozenset()
