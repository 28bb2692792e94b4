"""`forerun serve`: the server of both APIs."""

from dataclasses import replace

import click

from forerun.base.address import Address
from forerun.base.errors import RequestError
from forerun.base.logs import configure
from forerun.settings import Settings


@click.command("serve")
@click.option(
    "--host",
    metavar="ADDRESS",
    help="Where to listen, such as 0.0.0.0:8080; else FORERUN_HOST, else 127.0.0.1:11435.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Else FORERUN_LOG_FORMAT, else text.",
)
@click.option(
    "--without-key",
    is_flag=True,
    help="Let everyone who can reach the address use the server.",
)
@click.pass_obj
def command(
    settings: Settings, *, host: str | None, log_format: str | None, without_key: bool
) -> None:
    """Answer requests of Ollama's and OpenAI's clients until Ctrl-C.

    Beyond this machine a key is needed: clients send FORERUN_API_KEY as their bearer token. Web
    pages of other origins than this machine's are refused unless FORERUN_ORIGINS names them.
    """
    if host is not None:
        settings = replace(settings, host=_parsed(host), host_given=True)
    settings = replace(
        settings, log=settings.log or "info", log_format=log_format or settings.log_format
    )
    if not (settings.host.is_loopback or settings.api_key or without_key):
        raise RequestError(
            f"other machines could use a server at {settings.host}; set FORERUN_API_KEY to a key "
            "that clients must send, or add --without-key"
        )
    from forerun.api.server import listen, serve  # not needed to refuse

    configure(settings.log or "info", settings.log_format)
    with listen(settings.host) as listener:
        serve(settings, listener)


def _parsed(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError:
        raise RequestError(
            f"--host is {text!r}; it must be an address such as 127.0.0.1:11435"
        ) from None
