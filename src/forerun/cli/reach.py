"""Whether a server is up that a command can use, and what is used where none is."""

from forerun.base.errors import RequestError
from forerun.cli.places import Place
from forerun.cli.private import PrivatePlace
from forerun.cli.served import ServedPlace
from forerun.client.server import NoServerError, ServerClient
from forerun.settings import Settings


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


def needed_server(settings: Settings) -> ServerClient:
    """The server, for commands that are about one. RequestError says how to start it."""
    client = server_in_reach(settings)
    if client is None:
        raise RequestError(
            f"no forerun server answers at {settings.host}; `forerun serve` starts one"
        )
    return client
