"""A chat request to the spans of its prompt (spec 06 TMP-2, TMP-7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.base.spans import Span
from forerun.chat.content import ContentForm
from forerun.chat.continuation import ANSWERED, continues, cut_head, cut_tail, with_tail
from forerun.chat.marks import ControlMarks, cut, remove_object_marks
from forerun.chat.messages import read_messages
from forerun.chat.plain import plain_object
from forerun.chat.sources import ChatTemplates
from forerun.chat.template import Template

RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a caller sent, as decoded JSON, and what the model's Modelfile puts before it.

    `system` is the Modelfile's SYSTEM, which comes first and alone is trusted. `model_turns` are
    its MESSAGE lines, which may hold what somebody typed into a chat that was saved. The two flags
    are None unless the request says otherwise than TMP-4. `goes_on`: the messages are the next turn
    of a chat whose prompt and answer are there already; what is rendered is the end of that answer
    and the new turn, and what comes before a first turn is left out.
    """

    messages: Sequence[object]
    tools: Sequence[object] | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    system: str | None = None
    model_turns: Sequence[object] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    goes_on: bool = False


class ChatRenderer:
    """Renders requests to one model. May be used from several threads at once.

    `special_tokens` are the names a template sees (`bos_token`, ...), `control_tokens` what only
    the template and the Modelfile's SYSTEM may write (TOK-2).
    """

    def __init__(
        self,
        templates: ChatTemplates,
        special_tokens: Mapping[str, str],
        control_tokens: Sequence[str],
    ) -> None:
        self._templates = templates
        self._special_tokens = dict(special_tokens)
        self._marks = ControlMarks(control_tokens)
        self._forms: dict[Template, ContentForm] = {}

    def render(self, request: ChatRequest, now: datetime) -> list[Span]:
        """The prompt. Raises RequestError naming what is wrong with the request."""
        try:
            return self._render(request, now)
        except RecursionError as error:
            raise RequestError("the request is nested too deeply; flatten it") from error

    def _render(self, request: ChatRequest, now: datetime) -> list[Span]:
        if not request.messages:
            raise RequestError("messages is empty; send at least one message")
        template = self._templates.choose(tools_given=bool(request.tools))
        messages = self._messages(request, template, now)
        last, prompt = messages[-1], request.add_generation_prompt
        continued = continues(last, request.continue_final_message, prompt)
        if continued:
            messages[-1] = with_tail(last)
        variables: JsonObject = {
            "messages": [*messages],
            "tools": self._tools(request.tools),
            "documents": None,
            "add_generation_prompt": not continued if prompt is None else prompt,
            **self._special_tokens,
            **self._arguments(request.arguments),
        }
        text = template.render(variables, now)
        if request.goes_on:
            text = cut_head(text)
        return cut(cut_tail(text, last) if continued else text)

    def _messages(
        self, request: ChatRequest, template: Template, now: datetime
    ) -> list[JsonObject]:
        form = self._forms.setdefault(template, ContentForm(template, self._special_tokens))
        if request.goes_on:
            later = [form.fit(message, now) for message in read_messages(request.messages)]
            return [*ANSWERED, *map(self._marks.mark_object, later)]
        system = [{"role": "system", "content": request.system}] if request.system else []
        given = [*read_messages(request.model_turns), *read_messages(request.messages)]
        trusted = [form.fit(message, now) for message in read_messages(system)]
        untrusted = [form.fit(message, now) for message in given]
        return [*map(remove_object_marks, trusted), *map(self._marks.mark_object, untrusted)]

    def _tools(self, tools: Sequence[object] | None) -> JsonValue:
        if not tools:
            return None
        named = [plain_object(tool, f"tools[{place}]") for place, tool in enumerate(tools)]
        return [self._marks.mark_object(tool) for tool in named]

    def _arguments(self, arguments: Mapping[str, object]) -> JsonObject:
        for name in arguments:
            if name in RESERVED or name in self._special_tokens:
                raise RequestError(f"template argument {name!r} is the server's; leave it out")
        return self._marks.mark_object(plain_object(arguments, "the template's arguments"))
