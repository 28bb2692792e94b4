"""`forerun stop NAME`: unload a model from the server."""

import click

from forerun.base.errors import NotFoundError
from forerun.cli.reach import needed_server
from forerun.settings import Settings
from forerun.store.names import ModelName


@click.command("stop")
@click.argument("name")
@click.pass_obj
def command(settings: Settings, name: str) -> None:
    """Unload a model from the server and give back its memory.

    Answers under way may end first. The model stays in the store.
    """
    model = ModelName.parse(name)
    client = needed_server(settings)
    names = [str(each.get("name")) for each in client.loaded()]
    if model not in [ModelName.parse(each) for each in names]:
        loaded = f"loaded: {', '.join(names)}" if names else "no model is"
        raise NotFoundError(f"{model} is not loaded; {loaded}")
    client.post("/api/generate", {"model": str(model), "keep_alive": 0, "stream": False})
    click.echo(f"stopped {model}", err=True)
