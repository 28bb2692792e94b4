"""Modelfiles: what a model is made of and how it is used by default (spec 07 MF)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forerun.base.errors import NotFoundError, RequestError
from forerun.base.go_templates import refuse_go_template
from forerun.base.options import OptionValue, check_options
from forerun.base.shown import shown
from forerun.store.messages import ROLES, Message
from forerun.store.modelfile_syntax import Statement, error_at, quoted, statements
from forerun.store.parameters import RETIRED, parameter_texts, with_parameter
from forerun.store.stored import StoredModel
from forerun.store.versions import check_requires

_REPEATABLE: Final = ("PARAMETER", "LICENSE", "MESSAGE", "ADAPTER")


@dataclass(frozen=True, slots=True)
class Modelfile:
    """A parsed Modelfile. None means that the command is absent; "" is a value of its own."""

    source: str
    draft: str | None = None
    parameters: dict[str, OptionValue] = field(default_factory=dict)
    template: str | None = None
    system: str | None = None
    licenses: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    warnings: tuple[str, ...] = ()


def read_modelfile(path: Path, *, default_source: str | None = None) -> Modelfile:
    """Parse a Modelfile on disk; `default_source` as in `parse_modelfile`."""
    return parse_modelfile(read_modelfile_text(path), default_source=default_source)


def read_modelfile_text(path: Path) -> str:
    """What a Modelfile on disk, or a pipe, says. Raises naming the path or the line."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise NotFoundError(f"no Modelfile at {path}; name another with -f") from None
    except OSError as reason:
        raise RequestError(f"cannot read {path}: {reason.strerror}") from None
    except UnicodeDecodeError as reason:
        line = reason.object[: reason.start].count(b"\n") + 1
        raise error_at(line, "not UTF-8 text; save the file as UTF-8") from None


def parse_modelfile(text: str, *, default_source: str | None = None) -> Modelfile:
    """The Modelfile in `text`.

    `default_source` stands in for a missing FROM ("." on the command line); without it a missing
    FROM is an error. Raises RequestError with the line number.
    """
    listed = statements(text)
    single = _single(listed)
    from_line = single.get("FROM")
    source = default_source if from_line is None else from_line.value
    if from_line is None and (source is None or "DRAFT" in single):
        raise RequestError("Modelfile has no FROM line; start it with FROM and a model")
    parameters, warnings = _parameters(listed)
    return Modelfile(
        source=source or "",
        draft=_optional(single, "DRAFT"),
        parameters=parameters,
        template=_template(single.get("TEMPLATE")),
        system=_optional(single, "SYSTEM"),
        licenses=tuple(s.value for s in listed if s.command == "LICENSE"),
        messages=tuple(_message(s) for s in listed if s.command == "MESSAGE"),
        renderer=_optional(single, "RENDERER"),
        parser=_optional(single, "PARSER"),
        requires=_requires(single.get("REQUIRES")),
        warnings=warnings,
    )


def check_modelfile(modelfile: Modelfile) -> None:
    """Refuse values that no Modelfile may have, wherever they come from. RequestError says why."""
    check_options(dict(modelfile.parameters))
    if modelfile.template is not None:
        refuse_go_template(modelfile.template)
    for message in modelfile.messages:
        check_role(message.role)
    if modelfile.requires is not None:
        check_requires(modelfile.requires)


def check_role(role: str) -> None:
    """RequestError for a role that a stored message cannot have."""
    if role not in ROLES:
        raise RequestError(f"MESSAGE role is {shown(role)}; it must be {', '.join(ROLES)}")


def modelfile_of(model: StoredModel) -> Modelfile:
    """The Modelfile that makes the same model again from the stored one."""
    config = model.config
    return Modelfile(
        source=str(model.name),
        parameters=model.parameters,
        template=model.template,
        system=model.system,
        licenses=model.licenses,
        messages=model.messages,
        renderer=config.renderer or None,
        parser=config.parser or None,
        requires=config.requires or None,
    )


def format_modelfile(model: Modelfile | StoredModel) -> str:
    """The text of a Modelfile, or of the one that stands for a stored model."""
    modelfile = modelfile_of(model) if isinstance(model, StoredModel) else model
    written = [("FROM", modelfile.source), ("DRAFT", modelfile.draft)]
    written += [("TEMPLATE", modelfile.template), ("SYSTEM", modelfile.system)]
    for name, value in modelfile.parameters.items():
        written += [(f"PARAMETER {name}", text) for text in parameter_texts(value)]
    written += [(f"MESSAGE {m.role}", m.content) for m in modelfile.messages]
    written += [("RENDERER", modelfile.renderer), ("PARSER", modelfile.parser)]
    written += [("REQUIRES", modelfile.requires)]
    written += [("LICENSE", text) for text in modelfile.licenses]
    lines = [_line(start, text) for start, text in written if text is not None]
    return "\n".join(lines) + "\n"


def _line(start: str, text: str) -> str:
    plain = text.isprintable() and text == text.strip() and text and not text.startswith('"')
    value = text if plain else quoted(text)
    if value is None:
        return f"# {start} cannot be written in a Modelfile: a line of it ends in three quotes"
    return f"{start} {value}"


def _single(listed: list[Statement]) -> dict[str, Statement]:
    """The commands that may stand once."""
    found: dict[str, Statement] = {}
    for statement in listed:
        if statement.command in _REPEATABLE:
            continue
        earlier = found.setdefault(statement.command, statement)
        if earlier is not statement:
            raise statement.error(
                f"{statement.command} stands in line {earlier.line} already; keep one"
            )
    for command in ("FROM", "DRAFT"):
        if command in found and not found[command].value:
            raise found[command].error(f"{command} has no value")
    return found


def _optional(single: dict[str, Statement], command: str) -> str | None:
    return single[command].value if command in single else None


def _parameters(listed: list[Statement]) -> tuple[dict[str, OptionValue], tuple[str, ...]]:
    parameters: dict[str, OptionValue] = {}
    warnings = []
    for statement in listed:
        if statement.command == "ADAPTER":
            warnings.append(f"Modelfile line {statement.line}: ADAPTER has no effect")
        elif statement.command == "PARAMETER" and statement.name in RETIRED:
            warnings.append(
                f"Modelfile line {statement.line}: parameter {statement.name} has no effect"
            )
        elif statement.command == "PARAMETER":
            try:
                parameters = with_parameter(parameters, statement.name, statement.value)
            except RequestError as reason:
                raise statement.error(reason) from None
    return parameters, tuple(warnings)


def _template(statement: Statement | None) -> str | None:
    if statement is None:
        return None
    try:
        refuse_go_template(statement.value)
    except RequestError as reason:
        raise statement.error(reason) from None
    return statement.value


def _message(statement: Statement) -> Message:
    role = statement.name.lower()
    try:
        check_role(role)
    except RequestError as reason:
        raise statement.error(reason) from None
    return Message(role, statement.value)


def _requires(statement: Statement | None) -> str | None:
    if statement is None:
        return None
    try:
        check_requires(statement.value)
    except RequestError as reason:
        raise statement.error(reason) from None
    return statement.value
