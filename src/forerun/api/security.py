"""Who may use the server: checked once a request, before any route (spec 08 ENV).

Web pages are the strangers here: a browser on this machine reaches a loopback server for any page
that it shows. A page on a name that was rebound to 127.0.0.1 is told by its Host header, any other
page by its Origin header; programs send no Origin and pass. A key, where one is set, is asked of
all. Plain ASGI, so that an answer's stream passes through untouched.
"""

import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.api.errors import error_response
from forerun.base.address import is_loopback
from forerun.base.errors import ForerunError
from forerun.base.shown import shown
from forerun.settings import Settings

ANY = "*"
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
PREFLIGHT_S = 3600  # how long a browser may remember what it was told

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]@]+)(?::\d{1,5})?")
_HEADER_NAMES = re.compile(r"[\w\s,.-]{1,2000}", re.ASCII)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Whom the server answers."""

    hosts: frozenset[str] = frozenset()  # its names, besides loopback ones and IP addresses
    origins: frozenset[str] = frozenset()  # exact, `scheme://*`, `null` or `*`
    api_key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Settings) -> "AccessRules":
        """What the settings and this machine's name say."""
        machine = socket.gethostname().lower()
        configured = [urlsplit(origin).hostname for origin in settings.origins if origin != ANY]
        hosts = {settings.host.host.lower(), machine, machine.partition(".")[0] + ".local"}
        key = settings.api_key
        return cls(
            frozenset(hosts | {name for name in configured if name and name != ANY}),
            frozenset(settings.origins),
            None if key is None else key.encode(errors="surrogateescape"),
        )

    def allow_host(self, header: str) -> bool:
        """Whether a Host header names this server and no name that was rebound to it."""
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name = match[1].strip("[]").rstrip(".").lower()
        return (
            ANY in self.origins or name in self.hosts or is_loopback(name) or _is_ip_address(name)
        )

    def allow_origin(self, header: str) -> bool:
        """Whether pages of this origin may use the server: this machine's, and configured ones."""
        origin = header.strip().lower()
        scheme = origin.partition("://")[0]
        if self.origins & {ANY, origin, f"{scheme}://{ANY}"}:
            return True
        return scheme in ("http", "https") and _is_loopback_origin(origin)

    def allow_key(self, header: str | None) -> bool:
        """Whether an Authorization header carries the key; how long this takes tells nothing."""
        if self.api_key is None:
            return True
        scheme, _, given = (header or "").strip().partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1"), self.api_key)
        return scheme.lower() == "bearer" and same


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback_origin(origin: str) -> bool:
    match = _HOST.fullmatch(origin.partition("://")[2])
    return match is not None and is_loopback(match[1].strip("[]"))


class Guard:
    """Refuses what the rules do not allow, and gives allowed web pages their CORS headers."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._stranger(scope["path"], headers)
        if refused is not None:
            await refused(scope, receive, send)
            return
        origin = headers.get("origin")
        if origin is not None:
            send = _with_cors(send, origin)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight(headers)(scope, receive, send)
                return
        if self._needs_key(scope) and not self._rules.allow_key(headers.get("authorization")):
            await _no_key(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _stranger(self, path: str, headers: Headers) -> Response | None:
        for host in headers.getlist("host"):
            if not self._rules.allow_host(host):
                return _forbidden(
                    path,
                    f"this server is not known as {shown(host)}; use its IP address, or set "
                    "FORERUN_ORIGINS=http://NAME where the server is started to allow the name",
                )
        for origin in headers.getlist("origin"):
            if not self._rules.allow_origin(origin):
                return _forbidden(
                    path,
                    f"web pages of {shown(origin)} may not use this server; FORERUN_ORIGINS where "
                    "the server is started allows them",
                )
        return None

    def _needs_key(self, scope: Scope) -> bool:
        """All but the question whether a server is there."""
        return not (scope["path"] == "/" and scope["method"] in ("GET", "HEAD"))


def _forbidden(path: str, text: str) -> Response:
    return error_response(path, ForerunError(text), 403)


def _no_key(path: str) -> Response:
    text = "this server needs its API key: send the header Authorization: Bearer KEY"
    response = error_response(path, ForerunError(text), 401)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _preflight(headers: Headers) -> Response:
    """What a browser asks before it lets a page send more than a form could."""
    response = Response(status_code=204)
    response.headers["access-control-allow-methods"] = METHODS
    response.headers["access-control-max-age"] = str(PREFLIGHT_S)
    wanted = headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(wanted):
        response.headers["access-control-allow-headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        response.headers["access-control-allow-private-network"] = "true"
    return response


def _with_cors(send: Send, origin: str) -> Send:
    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            headers["access-control-allow-origin"] = origin
            headers.add_vary_header("Origin")
            message = {**message, "headers": headers.raw}
        await send(message)

    return send_with_cors
