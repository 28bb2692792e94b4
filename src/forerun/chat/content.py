"""Content in the form a template reads: one text, or a list of parts (spec 06 TMP-3)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.chat.template import Template

PROBE = "zqprobe"  # a word no template writes itself
Form = Literal["text", "parts", "either"]


class ContentForm:
    """Finds out once for each role which form one template reads, and fits messages to it."""

    def __init__(self, template: Template, special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = special_tokens
        self._forms: dict[str, Form] = {}

    def fit(self, message: JsonObject, now: datetime) -> JsonObject:
        """`message` with its content as the template reads it.

        Absent content becomes an empty text where the template would trip over its absence.
        """
        content = message.get("content")
        if content is None:
            return {**message, "content": ""} if self._needs_content(message) else message
        form = self._form(str(message["role"]), now)
        if isinstance(content, list) and form == "text":
            return {**message, "content": _joined(content)}
        if isinstance(content, str) and form == "parts":
            return {**message, "content": [{"type": "text", "text": content}]}
        return message

    def _needs_content(self, message: JsonObject) -> bool:
        """Templates that know tool calls tell by absent content; others just add it up."""
        return "tool_calls" not in message or "tool_calls" not in self._template.source

    def _form(self, role: str, now: datetime) -> Form:
        """Told by rendering a text by itself and as the only part of a list."""
        if role not in self._forms:
            alone = self._probe(role, PROBE, now)
            listed = self._probe(role, [{"type": "text", "text": PROBE}], now)
            if PROBE in alone:
                self._forms[role] = "either" if listed == alone else "text"
            else:
                self._forms[role] = "parts" if PROBE in listed else "text"
        return self._forms[role]

    def _probe(self, role: str, content: JsonValue, now: datetime) -> str:
        """The rendered text; empty where the template refuses."""
        user: JsonObject = {"role": "user", "content": "a"}
        probe: JsonObject = {"role": role, "content": content}
        conversation: dict[str, list[JsonValue]] = {"user": [probe], "system": [probe, user]}
        variables: JsonObject = {
            "messages": conversation.get(role, [user, probe]),
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
            **self._special_tokens,
        }
        try:
            return self._template.render(variables, now)
        except RequestError:
            return ""


def _joined(parts: list[JsonValue]) -> str:
    """As templates that read parts write them: without anything between."""
    return "".join(str(part["text"]) for part in parts if isinstance(part, dict))
