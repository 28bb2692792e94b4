"""`forerun show`: what a model consists of, or what models run on here."""

import click

from forerun.base.units import format_bytes
from forerun.cli.list import table
from forerun.cli.machine import system_rows
from forerun.cli.reach import bound_drafters
from forerun.cli.sections import SECTIONS, text_of
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store


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
    """Show what a model consists of, or with --system what models run on here.

    Where the server has the model loaded, its drafters are named: what --draft may choose.
    """
    if of_machine == bool(name):
        raise click.UsageError("show takes a model's name, or --system")
    if not name:
        click.echo(table(["", ""], system_rows(settings)).lstrip())
        return
    model = Store(settings.models).get(ModelName.parse(name))
    drafters = bound_drafters(model.name, settings) if section == "info" else []
    click.echo(text_of(model, section, drafters))
    if verbose:
        rows = [[layer.name, format_bytes(layer.blob.size)] for layer in model.tensors]
        click.echo("\n" + table(["TENSOR", "SIZE"], rows))
