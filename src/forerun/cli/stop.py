"""`forerun stop NAME`: unload a model from the server."""

import click

from forerun.base.errors import NotFoundError
from forerun.base.json_types import JsonValue
from forerun.cli.reach import needed_server
from forerun.settings import Settings
from forerun.store.names import ModelName


@click.command("stop")
@click.argument("name")
@click.pass_obj
def command(settings: Settings, name: str) -> None:
    """Unload a model from the server and give back its memory.

    Answers under way have a few seconds to end. The model stays in the store.
    """
    model = ModelName.parse(name)
    client = needed_server(settings)
    loaded = client.loaded()
    stored = client.get("/api/tags").get("models")
    same = [each for each in stored if _is(each, model)] if isinstance(stored, list) else []
    digests = {each.get("digest") for each in same if isinstance(each, dict)}
    if not any(_is(each, model) or each.get("digest") in digests for each in loaded):
        names = ", ".join(str(each.get("name")) for each in loaded)
        raise NotFoundError(
            f"{model} is not loaded; {f'loaded: {names}' if names else 'no model is'}"
        )
    client.post("/api/generate", {"model": str(model), "keep_alive": 0, "stream": False})
    click.echo(f"stopped {model}", err=True)


def _is(entry: JsonValue, model: ModelName) -> bool:
    """Whether a server's entry has that name. Two names of one model share what is loaded."""
    name = entry.get("name") if isinstance(entry, dict) else None
    return isinstance(name, str) and ModelName.parse(name) == model
