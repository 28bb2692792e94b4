"""Whom the server answers, as rules without a server: 08 ENV (FORERUN_HOST, ORIGINS, API_KEY)."""

import dataclasses
import socket

import pytest

from forerun.api.security import AccessRules
from forerun.settings import Settings

OPEN = AccessRules()


def rules(**variables: str) -> AccessRules:
    return AccessRules.of(Settings.from_environment(variables))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:11435",
        "LOCALHOST.:1",
        "app.localhost:8080",
        "127.0.0.1:11435",
        "[::1]:11435",
        "192.168.1.7:11435",
        "[fe80::1]",
    ],
)
def test_loopback_names_and_ip_addresses_are_always_hosts(host: str) -> None:
    assert OPEN.allow_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:11435",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "notlocalhost",
        "localhost:port",
        "localhost:1:2",
        "user@localhost",
        "localhost/x",
        "local host",
        "",
    ],
)
def test_any_other_name_may_have_been_rebound_to_this_machine(host: str) -> None:
    assert not OPEN.allow_host(host)


def test_the_names_of_the_machine_and_of_the_settings_are_hosts() -> None:
    machine = socket.gethostname()
    found = rules(FORERUN_HOST="box.lan:80", FORERUN_ORIGINS="https://App.example:8443,app://*")
    for host in (machine, machine.partition(".")[0] + ".local:11435", "BOX.lan:80", "app.example"):
        assert found.allow_host(host), host
    assert not found.allow_host("other.example")
    assert rules(FORERUN_ORIGINS="*").allow_host("other.example")


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173", "http://a.localhost"],
)
def test_this_machines_pages_may_use_it(origin: str) -> None:
    assert OPEN.allow_origin(origin)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost.evil.example",
        "http://localhost:80@evil.example",
        "app://localhost",
        "file://",
        "null",
        "",
        "*",
        "localhost",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    assert not OPEN.allow_origin(origin)


@pytest.mark.parametrize(
    ("configured", "allowed", "refused"),
    [
        ("https://app.example", "https://APP.example", "https://app.example:8443"),
        ("https://app.example", "http://localhost:1", "http://app.example"),
        ("app://*", "app://obsidian.md", "application://x"),
        ("null", "null", "https://null"),
        ("https://a.example, https://b.example/", "https://b.example", "https://c.example"),
    ],
)
def test_configured_origins_are_added(configured: str, allowed: str, refused: str) -> None:
    found = rules(FORERUN_ORIGINS=configured)
    assert found.allow_origin(allowed)
    assert not found.allow_origin(refused)


def test_a_star_allows_every_page() -> None:
    assert rules(FORERUN_ORIGINS="*").allow_origin("null")


@pytest.mark.parametrize("key", ["secret", "schlüssel"])
def test_the_key_is_asked_of_all(key: str) -> None:
    found = rules(FORERUN_API_KEY=key)
    carried = key.encode().decode("latin-1")  # how a header's bytes are shown to us
    assert found.allow_key(f"Bearer {carried}")
    assert found.allow_key(f"bearer  {carried} ")
    for header in (None, "", carried, f"Basic {carried}", f"Bearer {carried}x", "Bearer \xff", "B"):
        assert not found.allow_key(header), header
    assert key not in repr(found)


def test_without_a_key_nobody_needs_one() -> None:
    assert dataclasses.replace(OPEN, api_key=None).allow_key(None)
