"""Where a server listens: a host and a TCP port, written `127.0.0.1:11435`."""

import ipaddress
import re
from dataclasses import dataclass

DEFAULT_PORT = 11435
LOCAL_NAMES = ("localhost",)
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}

_WRITTEN = re.compile(r"(?:http://)?(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]*)(?::(\d{1,5}))?/?")


@dataclass(frozen=True, slots=True)
class Address:
    """`host` is a name or an IP address without brackets."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> "Address":
        """`HOST`, `HOST:PORT`, `:PORT` or `http://HOST:PORT`; ValueError for anything else."""
        match = _WRITTEN.fullmatch(text)
        if match is None or not text:
            raise ValueError(text)
        host, port = match[1].strip("[]"), int(match[2] or DEFAULT_PORT)
        if port > 65535:
            raise ValueError(text)
        if ":" in host:
            ipaddress.IPv6Address(host)
        return cls(host or cls().host, port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    @property
    def contact(self) -> "Address":
        """What a client on this machine connects to: a server may listen at all addresses."""
        return Address(ANYWHERE.get(self.host, self.host), self.port)

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://{self}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether a name or IP address without brackets stands for this machine alone."""
    name = host.lower().rstrip(".")
    if name in LOCAL_NAMES or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
