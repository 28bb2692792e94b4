"""`forerun cp SOURCE DESTINATION`: a second name for a model."""

import click

from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store


@click.command("cp")
@click.argument("source")
@click.argument("destination")
@click.pass_obj
def command(settings: Settings, source: str, destination: str) -> None:
    """Give a model a second name. No data is copied."""
    names = ModelName.parse(source), ModelName.parse(destination)
    Store(settings.models).copy(*names)
    click.echo(f"copied {names[0]} to {names[1]}")
