"""What tests of /v1 share: the official client of their module's `server`."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from fixtures.server import Server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
