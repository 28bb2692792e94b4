"""What tests of the native API share: the official client of their module's `server`."""

from collections.abc import Iterator

import ollama
import pytest

from fixtures.server import Server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as client:
        yield client
