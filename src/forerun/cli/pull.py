"""`forerun pull NAME`: fetch a model of the catalogue or of hf.co."""

import click

from forerun.cli.progress import import_model
from forerun.protocol.imports import PullRequest
from forerun.settings import Settings


@click.command("pull")
@click.argument("name")
@click.pass_obj
def command(settings: Settings, name: str) -> None:
    """Fetch a model: a catalogue name, or hf.co/ORG/NAME[:REVISION].

    What is here already is checked and kept; an interrupted pull continues.
    """
    click.echo(f"pulled {import_model(PullRequest(name=name), settings)}", err=True)
