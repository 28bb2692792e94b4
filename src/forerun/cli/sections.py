"""What a model consists of, a section at a time, as text."""

from collections.abc import Sequence

from forerun.base.units import format_bytes
from forerun.cli.list import table
from forerun.store.describe import chat_template
from forerun.store.modelfile import format_modelfile
from forerun.store.parameters import parameter_texts
from forerun.store.stored import StoredModel

SECTIONS = ("info", "parameters", "template", "system", "license", "modelfile")
NOTHING = "none"


def text_of(model: StoredModel, section: str, drafters: Sequence[str] = ()) -> str:
    """One section of `show`, as text. `drafters` are those of the loaded model."""
    if section == "info":
        return table(["", ""], _info(model) + drafter_rows(drafters)).lstrip()
    if section == "parameters":
        lines = [
            f"{name} {text}"
            for name, value in model.parameters.items()
            for text in parameter_texts(value)
        ]
        return "\n".join(lines) or NOTHING
    if section == "template":
        return chat_template(model) or NOTHING
    if section == "system":
        return model.system or NOTHING
    if section == "license":
        return "\n\n".join(model.licenses) or NOTHING
    return format_modelfile(model)


def drafter_rows(drafters: Sequence[str]) -> list[list[str]]:
    """What the option `draft` may choose, if that is known."""
    return [["drafters", ", ".join(drafters)]] if drafters else []


def _info(model: StoredModel) -> list[list[str]]:
    config = model.json("config.json")
    nested = config.get("text_config")
    inner = nested if isinstance(nested, dict) else {}
    stated = model.config
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else "unknown"
    rows = [
        ["name", str(model.name)],
        ["architecture", str(first)],
        ["context length", str({**config, **inner}.get("max_position_embeddings", "unknown"))],
        ["embedding length", str({**config, **inner}.get("hidden_size", "unknown"))],
        ["layers", str({**config, **inner}.get("num_hidden_layers", "unknown"))],
        ["weights", model.weights_summary()],
        ["size", format_bytes(model.manifest.size)],
        ["digest", str(model.digest).partition(":")[2][:12]],
        ["capabilities", ", ".join(stated.capabilities) or NOTHING],
        ["parser", stated.parser or "by its template"],
        ["system prompt", _first_line(model.system) or NOTHING],
    ]
    rows += [
        ["parameter", f"{name} {text}"]
        for name, value in model.parameters.items()
        for text in parameter_texts(value)
    ]
    if stated.origin is not None:
        rows.append(["source", stated.origin.source])
        rows.append(["version", stated.origin.version[:50]])
    if model.draft is not None:
        rows.append(["draft", model.draft.architecture])
        rows.append(["draft weights", model.draft_summary()])
    elif model.has_own_head:
        rows.append(["draft", "the checkpoint's own head"])
    return rows


def _first_line(text: str | None) -> str:
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= 50 else line[:47] + "..."
