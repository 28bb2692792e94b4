"""`forerun rm NAME...`: remove models and the blobs that only they used."""

import click

from forerun.cli.reach import unload_replaced
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.pass_obj
def command(settings: Settings, names: tuple[str, ...]) -> None:
    """Remove models. What another model shares stays."""
    store = Store(settings.models)
    for name in [ModelName.parse(text) for text in names]:
        store.delete(name)
        unload_replaced(name, settings)
        click.echo(f"removed {name}")
