"""Calls as models of the Gemma family write them.

FunctionGemma: `<start_function_call>call:f{a:<escape>text<escape>,n:1}<end_function_call>`.
Gemma 3, which knows no tokens for it, as prompts commonly ask of it: a fenced block `tool_code` or
`tool_call` with calls like Python's, `f(a="text", n=1)`, or a call in JSON. Such a block may hold
any code, so it is a call only where every function in it is a tool.
"""

from collections.abc import Sequence

from forerun.chat.dialects.blocks import Block
from forerun.chat.dialects.json_calls import json_call
from forerun.chat.dialects.literals import ESCAPE, LiteralReader, MalformedError
from forerun.chat.dialects.tools import Tools, make_call
from forerun.protocol.requests import ToolCall

OPEN, CLOSE = "<start_function_call>", "<end_function_call>"
FENCE = "```"
FENCES = (f"{FENCE}tool_code", f"{FENCE}tool_call")


def _marked_call(body: str, _: Tools) -> Sequence[ToolCall]:
    reader = LiteralReader(body)
    try:
        reader.expect("call:")
        name = reader.word()
        reader.expect("{")
        call = make_call(name, reader.pairs(":", "}"))
        return () if call is None or not reader.at_end else (call,)
    except MalformedError:
        return ()


def _outside_escapes(body: str) -> bool:
    return body.count(ESCAPE) % 2 == 0


def _fenced_calls(body: str, tools: Tools) -> Sequence[ToolCall]:
    single = json_call(body)
    calls = _python_calls(body) if single is None else [single]
    return calls if all(call.name in tools.parameters for call in calls) else ()


def _python_calls(body: str) -> Sequence[ToolCall]:
    """One call after another, or a list of them."""
    reader = LiteralReader(body)
    calls = []
    try:
        listed = reader.accepts("[")
        while not (reader.accepts("]") if listed else reader.at_end):
            name = reader.word()
            reader.expect("(")
            call = make_call(name, reader.pairs("=", ")"))
            if call is None:
                return ()
            calls.append(call)
            reader.accepts("," if listed else ";")
    except MalformedError:
        return ()
    return calls if reader.at_end else ()


FUNCTION_GEMMA = (Block(OPEN, CLOSE, _marked_call, _outside_escapes),)
FENCED = tuple(Block(fence, FENCE, _fenced_calls) for fence in FENCES)
