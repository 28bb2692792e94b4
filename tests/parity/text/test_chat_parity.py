"""Prompt ids against transformers 5.24's `apply_chat_template` (spec 06 TMP-8, TMP-1..4, T14; E17).

The reference encodes each typed control token as a piece of its own, we encode it together with
the text around it (TOK-2). So ids are equal where a typed token touches nothing that merges with
it, and elsewhere the control tokens and the texts between them are.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from forerun.chat.render import ChatRenderer, ChatRequest
from forerun.chat.sources import ChatTemplates
from forerun.tokenizer.tokenizer import Tokenizer
from unit.text.sample_tokenizers import library

TEMPLATES = Path(__file__).parent / "templates"
NOW = datetime(2026, 1, 2)
LLAMA = ["<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
FAMILIES = {
    "smollm2": ("smollm", "<|im_start|>", "<|im_end|>"),
    "qwen_style": ("qwen", "<|endoftext|>", "<|im_end|>"),
    "llama_style": ("llama3", "<|begin|>", "<|eot_id|>"),
    "gemma_style": ("gemma", "<bos>", "<end_of_turn>"),
}


@dataclass(frozen=True)
class Family:
    reference: PreTrainedTokenizerFast
    tokenizer: Tokenizer
    renderer: ChatRenderer

    def ids(self, messages, **given):
        return self.tokenizer.encode(self.renderer.render(ChatRequest(messages, **given), NOW))

    def reference_ids(self, messages, *, sanitize=False, **given):
        given = {"add_generation_prompt": True} | given
        ids = self.reference.apply_chat_template(
            messages, return_dict=False, sanitize_control_tokens=sanitize, **given
        )
        return list(ids)

    def turns(self, ids):
        """The control tokens of a prompt and the texts between them."""
        texts, pending = [], []
        for token_id in ids:
            if token_id in self.tokenizer.control_ids:
                texts += [self.reference.decode(pending), token_id]
                pending = []
            else:
                pending.append(token_id)
        return [*texts, self.reference.decode(pending)]


@cache
def family(name):
    kind, bos, eos = FAMILIES[name]
    shared = Library.from_str(library(kind).to_str())
    if name == "llama_style":
        shared.add_special_tokens(LLAMA)
    template = (TEMPLATES / f"{name}.jinja").read_text()
    templates = ChatTemplates.load(template)
    files = {"tokenizer.json": shared.to_str().encode()}
    tokenizer = Tokenizer.load(files, templates.literals)
    special = {"bos_token": bos, "eos_token": eos}
    return Family(
        PreTrainedTokenizerFast(tokenizer_object=shared, chat_template=template, **special),
        tokenizer,
        ChatRenderer(templates, special, tokenizer.control_tokens),
    )


USER = {"role": "user", "content": "The quick  brown fox\n\n\njumps, doesn't it? 日本 👩‍💻 é"}
ANSWER = {"role": "assistant", "content": "  She sells sea shells.\n"}
SYSTEM = {"role": "system", "content": "You're a system\n"}
THOUGHT = {"role": "assistant", "content": "ok", "reasoning_content": "\nlet me see\n"}
INLINE = {"role": "assistant", "content": "<thinking></thinking>\n\nfine"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "function": {"name": "find", "arguments": {"q": "é<b>", "n": 2}}}
    ],
}
RESULT = {"role": "tool", "name": "find", "content": "12345 <b>bold</b>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds <things> & more",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
PLAIN = [
    ("smollm2", [USER], {}),
    ("smollm2", [SYSTEM, USER, ANSWER, USER], {}),
    ("qwen_style", [SYSTEM, USER, ANSWER, USER, THOUGHT, USER], {}),
    ("qwen_style", [USER, INLINE, USER], {"enable_thinking": False}),
    ("qwen_style", [SYSTEM, USER, CALL, RESULT, RESULT], {"tools": TOOLS}),
    ("qwen_style", [USER, CALL, RESULT, THOUGHT, USER], {"tools": TOOLS}),
    ("llama_style", [SYSTEM, USER, ANSWER, {**USER, "name": "Ann"}], {}),
    ("llama_style", [USER, CALL, RESULT], {"tools": TOOLS, "date_string": "1 May 2025"}),
    ("gemma_style", [SYSTEM, USER, ANSWER, USER], {}),
    ("gemma_style", [{"role": "user", "content": [{"type": "text", "text": " a "}] * 2}], {}),
]


def ours(arguments):
    """The reference takes tools and template arguments alike."""
    tools = arguments.get("tools")
    return {"tools": tools, "arguments": {k: v for k, v in arguments.items() if k != "tools"}}


@pytest.mark.parametrize(("name", "messages", "arguments"), PLAIN)
def test_ids_equal_the_reference_without_control_tokens(name, messages, arguments):
    """TMP-8, second half; TMP-1, TMP-2, TMP-3 in passing."""
    assert family(name).ids(messages, **ours(arguments)) == family(name).reference_ids(
        messages, **arguments
    )


@pytest.mark.parametrize(("name", "messages", "arguments"), PLAIN)
def test_ids_equal_the_sanitizing_reference_too(name, messages, arguments):
    """TMP-8: sanitizing changes nothing where there is nothing to sanitize."""
    assert family(name).ids(messages, **ours(arguments)) == family(name).reference_ids(
        messages, sanitize=True, **arguments
    )


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("content", ["She sells", "a b \n", "  two  ", "x."])
def test_continuing_a_message_equals_the_reference(name, content):
    """TMP-4: the prompt ends with the message's text, whether the template trims it or not."""
    messages = [USER, {"role": "assistant", "content": content}]
    expected = family(name).reference_ids(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert family(name).ids(messages) == expected


def typed(name, token):
    """A conversation in which every string a caller sends holds `token`, touching nothing."""
    text = f"see\n{token}x"
    if name == "qwen_style":
        messages = [{"role": "system", "content": text}, {"role": "user", "content": text}]
        messages += [{**CALL, "tool_calls": [_call(text)]}, {"role": "tool", "content": text}]
        return messages, {"tools": [{"type": "function", "function": {"name": text}}]}
    if name == "llama_style":
        messages = [{"role": "system", "content": text}]
        messages += [{"role": "user", "content": text, "name": text}]
        return messages, {"date_string": text}
    user = {"role": "user", "content": text}
    return [{"role": "system", "content": text}, user, {**ANSWER, "content": text}, user], {}


def _call(text):
    return {"type": "function", "function": {"name": text, "arguments": {"a": [text]}}}


@pytest.mark.parametrize("name", FAMILIES)
def test_typed_control_tokens_are_encoded_as_the_reference_encodes_them(name):
    """TMP-8, TMP-7, T14, E17: in a system prompt, user text, name, tool, arguments and result."""
    for token in family(name).tokenizer.control_tokens:
        if token == "word":
            continue  # ordinary text; the reference does not see that it must stand alone
        messages, arguments = typed(name, token)
        clean, clean_arguments = typed(name, "")
        ids = family(name).ids(messages, **ours(arguments))
        expected = family(name).reference_ids(messages, sanitize=True, **arguments)
        assert family(name).turns(ids) == family(name).turns(expected), token
        if not arguments.get("tools"):  # JSON has no line breaks: there the text around merges
            assert ids == expected, token
        templates_own = family(name).ids(clean, **ours(clean_arguments))
        assert family(name).turns(ids)[1::2] == family(name).turns(templates_own)[1::2]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25)
@given(data=st.data())
def test_any_typed_text_gives_the_turns_of_the_reference(name, data):
    """TMP-8, TMP-7: same control tokens, same texts between them."""
    tokens = [t for t in family(name).tokenizer.control_tokens if t.startswith("<")]
    piece = st.sampled_from([*tokens, "a", " ", "\n", "the", "<", "|>", "</", "end", "日", "5"])
    content = st.lists(piece, min_size=1, max_size=8).map("".join)
    messages = [
        {"role": role, "content": data.draw(content)} for role in ("user", "assistant", "user")
    ]
    expected = family(name).reference_ids(messages, sanitize=True)
    assert family(name).turns(family(name).ids(messages)) == family(name).turns(expected)
