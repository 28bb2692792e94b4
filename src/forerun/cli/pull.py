"""`forerun pull NAME`: fetch a model of the catalogue or of hf.co."""

import click

from forerun.cli.progress import import_model
from forerun.cli.reach import unload_replaced
from forerun.protocol.imports import PullRequest
from forerun.settings import Settings
from forerun.store.names import ModelName


@click.command("pull")
@click.argument("name")
@click.pass_obj
def command(settings: Settings, name: str) -> None:
    """Fetch a model: a catalogue name, or hf.co/ORG/NAME[:REVISION].

    What is here already is checked and kept; an interrupted pull continues.
    """
    pulled = import_model(PullRequest(name=name), settings)
    unload_replaced(ModelName.parse(pulled), settings)
    click.echo(f"pulled {pulled}", err=True)
