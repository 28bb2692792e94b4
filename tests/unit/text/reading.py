"""An answer read through its channels, for tests."""

from forerun.chat.dialects.channels import ChannelPlan
from forerun.chat.dialects.registry import DIALECTS
from forerun.chat.dialects.tools import Tools

SCHEMA = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "ratio": {"type": "number"},
    "exact": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "more": {"type": "object"},
    "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "mixed": {"type": ["string", "integer"]},
    "maybe": {"type": ["integer", "null"]},
}
TOOLS = [
    {"type": "function", "function": {"name": "find", "parameters": {"properties": SCHEMA}}},
    {"type": "function", "function": {"name": "stop_all"}},
]
FOUND = ("find", {"city": "Köln", "days": 2})
BLOCKS = {  # in each notation what says FOUND
    "hermes": (
        '<tool_call>\n{"name": "find", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
    ),
    "qwen3-coder": (
        "<tool_call>\n<function=find>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
    ),
    "llama3": '{"name": "find", "parameters": {"city": "Köln", "days": 2}}',
    "functiongemma": (
        "<start_function_call>call:find{city:<escape>Köln<escape>,days:2}<end_function_call>"
    ),
    "gemma3": '```tool_code\nfind(city="Köln", days=2)\n```',
}


def channels(dialect, opening="start", *, tools=True):
    """The parser of an answer in one of `DIALECTS`."""
    spoken = DIALECTS[dialect]
    return ChannelPlan(
        opening if spoken.thinking else None,
        spoken.calls if tools else None,
        Tools.of(TOOLS if tools else []),
    ).start()


def read(dialect, *pieces, opening="start", tools=True):
    """Thinking, text and calls as (name, arguments) of an answer that comes in pieces."""
    parser = channels(dialect, opening, tools=tools)
    made = [piece for text in pieces for piece in parser.push(text)] + parser.finish()
    assert sum(piece.raw for piece in made) == sum(map(len, pieces)), "every character is decided"
    calls = [(call.name, call.arguments) for piece in made for call in piece.calls]
    return (
        "".join(piece.thinking for piece in made),
        "".join(piece.text for piece in made),
        calls,
    )
