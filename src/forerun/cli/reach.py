"""Whether a server is up that a command can use, and what is used where none is."""

from contextlib import suppress

from forerun.base.errors import ForerunError, RequestError
from forerun.cli.places import Place
from forerun.cli.private import PrivatePlace
from forerun.cli.served import ServedPlace
from forerun.client.server import NoServerError, ServerClient
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store


def server_in_reach(settings: Settings) -> ServerClient | None:
    """The server at FORERUN_HOST or the default address; None: this process does it itself.

    An address beyond this machine was meant: that nothing answers there is an error.
    """
    client = ServerClient(settings.host, settings.api_key)
    try:
        client.version()
    except NoServerError:
        if not settings.host.contact.is_loopback:
            raise
        return None
    return client


def place_of(settings: Settings) -> Place:
    """Where models are opened: at the server if one is up, else in runners of this command."""
    client = server_in_reach(settings)
    if client is None:
        return PrivatePlace(settings)
    return ServedPlace(client)


def unload_replaced(name: ModelName, settings: Settings) -> None:
    """Let a server on this machine unload what it has loaded as `name`, if that is another model.

    What is in the store may have been removed or replaced since. Best effort: a server that cannot
    be asked keeps the old model until it was idle for long enough.
    """
    if not settings.host.contact.is_loopback:
        return
    client, digest = (
        ServerClient(settings.host, settings.api_key),
        Store(settings.models).digest(name),
    )
    kept = "" if digest is None else digest.hex
    with suppress(ForerunError):
        client.version()
        named = [each for each in client.loaded() if each.get("name") == str(name)]
        if any(each.get("digest") != kept for each in named):
            client.post("/api/generate", {"model": str(name), "keep_alive": 0, "stream": False})


def bound_drafters(name: ModelName, settings: Settings) -> list[str]:
    """The drafters of a model that a server on this machine has loaded; none if it has not."""
    if settings.host.contact.is_loopback:
        with suppress(ForerunError):
            client = ServerClient(settings.host, settings.api_key)
            client.version()
            return client.drafters(str(name))
    return []


def needed_server(settings: Settings) -> ServerClient:
    """The server, for commands that are about one. RequestError says how to start it."""
    client = server_in_reach(settings)
    if client is None:
        raise RequestError(
            f"no forerun server answers at {settings.host}; `forerun serve` starts one"
        )
    return client
