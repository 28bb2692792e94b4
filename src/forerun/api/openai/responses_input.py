"""From the items of a Responses request to the messages of a chat (spec 08 OAI-9)."""

from collections.abc import Sequence

from forerun.api.openai.messages import read_arguments
from forerun.api.openai.responses_wire import InputItem, Part
from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.protocol.requests import Message, ToolCall

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
NOTHING_STORED = "responses are not stored here; send the whole conversation as `input`"


def read_input(given: str | list[InputItem] | None, instructions: str | None) -> list[Message]:
    """The conversation, `instructions` first. RequestError naming the item that is wrong."""
    if given is None or given == []:
        raise RequestError("input is empty; give it a text or a list of items")
    items = [InputItem(role="user", content=given)] if isinstance(given, str) else given
    conversation = _Conversation(instructions)
    for place, item in enumerate(items):
        conversation.add(item, f"input[{place}]")
    return conversation.messages


class _Conversation:
    """Items that are one turn of the model's become one message."""

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[Message] = []
        self._call_names: dict[str, str] = {}
        if instructions is not None:
            self.messages.append(Message(role="system", content=instructions))

    def add(self, item: InputItem, where: str) -> None:
        kind = item.type or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            self._output(item, where)
        elif kind == "item_reference":
            raise RequestError(f"{where} is an item_reference, but {NOTHING_STORED}")
        else:
            raise RequestError(
                f"{where} is of type {shown(kind)}; items are message, reasoning, function_call "
                "and function_call_output"
            )

    def _message(self, item: InputItem, where: str) -> None:
        role = ROLES.get((item.role or "").lower())
        if role is None:
            raise RequestError(
                f"{where}.role is {shown(item.role)}; roles are {', '.join(sorted(ROLES))}"
            )
        text = _text(item.content, f"{where}.content")
        if role == "assistant":
            turn = self._turn()
            if turn.content:
                turn = self._new_turn()
            turn.content = text
        elif role == "system" and len(self.messages) == 1 and self.messages[0].role == "system":
            # many templates take one system message, and it must come first
            first = self.messages[0]
            first.content = "\n\n".join(filter(None, (str(first.content), text)))
        else:
            self.messages.append(Message(role=role, content=text))

    def _reasoning(self, item: InputItem, where: str) -> None:
        """What was thought belongs to what was said next; encrypted thoughts cannot be read."""
        summary = _text(item.summary, f"{where}.summary")
        thought = _text(item.content, f"{where}.content") or summary
        if not thought:
            return
        turn = self._turn()
        if turn.content or turn.tool_calls:
            turn = self._new_turn()
        turn.thinking = (turn.thinking or "") + thought

    def _call(self, item: InputItem, where: str) -> None:
        if not item.name or not item.call_id:
            raise RequestError(f"{where} lacks its name or call_id; a function_call has both")
        turn = self._turn()
        arguments = read_arguments(item.arguments)
        call = ToolCall(name=item.name, arguments=arguments, id=item.call_id)
        turn.tool_calls = [*(turn.tool_calls or []), call]
        self._call_names[item.call_id] = item.name

    def _output(self, item: InputItem, where: str) -> None:
        if not item.call_id:
            raise RequestError(f"{where} lacks its call_id; it is that of the function_call")
        self.messages.append(
            Message(
                role="tool",
                content=_text(item.output, f"{where}.output"),
                tool_call_id=item.call_id,
                tool_name=self._call_names.get(item.call_id),
            )
        )

    def _turn(self) -> Message:
        """The model's message that items belong to which follow one another."""
        if self.messages and self.messages[-1].role == "assistant":
            return self.messages[-1]
        return self._new_turn()

    def _new_turn(self) -> Message:
        self.messages.append(Message(role="assistant", content=""))
        return self.messages[-1]


def _text(content: str | Sequence[Part] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: Part, where: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in TEXT_PARTS:
        raise RequestError(
            f"{where} is of type {shown(part.type)}; this server takes text alone: input_text"
        )
    return part.text or ""
