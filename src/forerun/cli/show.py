"""`forerun show`: what a model consists of, or what models run on here."""

import click

from forerun.base.units import format_bytes
from forerun.cli.list import table
from forerun.cli.machine import system_rows
from forerun.settings import Settings
from forerun.store.describe import chat_template
from forerun.store.modelfile import format_modelfile
from forerun.store.names import ModelName
from forerun.store.parameters import parameter_texts
from forerun.store.store import Store
from forerun.store.stored import StoredModel

SECTIONS = ("info", "parameters", "template", "system", "license", "modelfile")
NOTHING = "none"


@click.command("show")
@click.argument("name", required=False)
@click.option(
    "--section",
    type=click.Choice(SECTIONS),
    default="info",
    show_default=True,
    help="What to show.",
)
@click.option("--verbose", is_flag=True, help="List the tensors too.")
@click.option(
    "--system",
    "of_machine",
    is_flag=True,
    help="Instead: CPU kernels, devices and versions in use on this machine.",
)
@click.pass_obj
def command(
    settings: Settings, name: str | None, *, section: str, verbose: bool, of_machine: bool
) -> None:
    """Show what a model consists of, or with --system what models run on here."""
    if of_machine == bool(name):
        raise click.UsageError("show takes a model's name, or --system")
    if not name:
        click.echo(table(["", ""], system_rows(settings)).lstrip())
        return
    model = Store(settings.models).get(ModelName.parse(name))
    click.echo(text_of(model, section))
    if verbose:
        rows = [[layer.name, format_bytes(layer.blob.size)] for layer in model.tensors]
        click.echo("\n" + table(["TENSOR", "SIZE"], rows))


def text_of(model: StoredModel, section: str) -> str:
    """One section of `show`, as text."""
    if section == "info":
        return table(["", ""], _info(model)).lstrip()
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
    return rows


def _first_line(text: str | None) -> str:
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= 50 else line[:47] + "..."
