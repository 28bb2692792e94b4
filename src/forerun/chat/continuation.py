"""Continues the assistant's last message (spec 06 TMP-4), or a chat that is there as ids."""

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.chat.marks import CONTINUE
from forerun.chat.messages import REASONING

# The space tells whether the template trims: then it is gone when the mark comes back.
TAIL = f"{CONTINUE} "

# Any turn and its answer, whose end is marked.
ANSWERED: tuple[JsonObject, ...] = (
    {"role": "user", "content": "-"},
    {"role": "assistant", "content": TAIL},
)


def continues(last: JsonObject, wanted: bool | None, generation_prompt: bool | None) -> bool:
    """Whether the model is to continue the message `last`; None: as the message suggests."""
    is_assistants = last["role"] == "assistant"
    if wanted and not is_assistants:
        raise RequestError("continue_final_message is true, but the last message is no assistant's")
    if wanted and generation_prompt:
        raise RequestError("continue_final_message and add_generation_prompt exclude each other")
    decided = wanted if wanted is not None else is_assistants and not generation_prompt
    if decided and "tool_calls" in last:
        raise RequestError("the last message calls tools; add their results to the messages")
    return decided


def with_tail(message: JsonObject) -> JsonObject:
    """`message` with a mark where its text ends: its content, or else its reasoning."""
    content = message.get("content", "")
    if not content and isinstance(message.get(REASONING[0]), str):
        reasoning = {name: message[name] for name in REASONING if name in message}
        return {**message, **{name: f"{text}{TAIL}" for name, text in reasoning.items()}}
    if isinstance(content, list) and content and isinstance(content[-1], dict):
        last: JsonValue = {**content[-1], "text": f"{content[-1]['text']}{TAIL}"}
        return {**message, "content": [*content[:-1], last]}
    return {**message, "content": f"{content or ''}{TAIL}"}


def cut_tail(text: str, message: JsonObject) -> str:
    """The rendered `text` up to the mark, without whitespace of the message that was trimmed."""
    end = text.rfind(CONTINUE)
    if end < 0:
        raise RequestError(
            "the model's chat template leaves out the last message, which therefore cannot be "
            "continued; set continue_final_message to false"
        )
    if text.startswith(TAIL, end):
        return text[:end]
    return text[:end].removesuffix(_trailing_space(message))


def cut_head(text: str) -> str:
    """The rendered `text` from the mark of ANSWERED on: how an answer ends, and what follows."""
    _, mark, rest = text.partition(CONTINUE)
    if not mark:
        raise RequestError(
            "the model's chat template leaves out earlier answers, so a context cannot go on; send "
            "the conversation as messages"
        )
    return rest.removeprefix(TAIL.removeprefix(CONTINUE))


def _trailing_space(message: JsonObject) -> str:
    """Of a message that is more than whitespace; else the whitespace before is the template's."""
    content = message.get("content") or message.get(REASONING[0])
    if isinstance(content, list):
        content = content[-1]["text"] if isinstance(content[-1], dict) else ""
    text = content if isinstance(content, str) else ""
    return text[len(text.rstrip()) :] if text.strip() else ""
