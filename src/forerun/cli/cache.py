"""`forerun cache [NAME]`: the conversations that a loaded model keeps warm."""

import json

import click

from forerun.base.errors import NotFoundError, RequestError
from forerun.base.units import format_bytes
from forerun.cli.cache_picture import show
from forerun.cli.reach import server_in_reach
from forerun.cli.served import read_cache
from forerun.client.server import ServerClient
from forerun.settings import Settings
from forerun.store.names import ModelName


@click.command("cache")
@click.argument("name", required=False)
@click.option("--clear", is_flag=True, help="Forget all of it first, and say what that freed.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of the tree.")
@click.pass_obj
def command(settings: Settings, name: str | None, *, clear: bool, as_json: bool) -> None:
    """Show the conversations that a loaded model keeps warm, as long as it is loaded.

    Without a NAME: of the one model that is loaded. Read it from the top: a conversation is a way
    down; stretches that several share stand once, above the fork; positions are tokens from the
    beginning. An arrow goes on straight from the line above. SIZE is what is stored for a stretch
    and counts towards the budget (FORERUN_CACHE_BYTES); USED is when it was last part of a
    request; TEXT is how it begins and ends.

    \b
    live     in the model's live memory; where SIZE is 0 B it takes nothing besides
    here     where the live conversation ends
    prompt   ends just before a prompt's end, where other answers to it part
    through  (sliding windows) requests go on from an earlier point than its end
    """
    client = server_in_reach(settings)
    if client is None:
        raise RequestError(
            f"no forerun server answers at {settings.host}, so nothing is cached: a cache lives as "
            "long as its model is loaded; `forerun serve` starts a server"
        )
    model = _only_one(client) if name is None else ModelName.parse(name)
    found = client.post("/api/cache", {"model": str(model), "clear": clear})
    if as_json:
        click.echo(json.dumps(found))
        return
    report = read_cache(found)
    if clear:
        click.echo(f"freed {format_bytes(report.freed_bytes)} of {model}", err=True)
    show(str(model), report)


def _only_one(client: ServerClient) -> ModelName:
    """The model that is loaded."""
    names = [str(each.get("name")) for each in client.loaded()]
    if not names:
        raise NotFoundError("no model is loaded, so nothing is cached")
    if len(names) > 1:
        raise RequestError(f"{len(names)} models are loaded; name one of {', '.join(names)}")
    return ModelName.parse(names[0])
