"""Pulls a repository in a process of its own, whose environment decides which hub is asked.

Arguments: repository, revision, folder. Prints one JSON line: what came, or the error.
"""

import json
import sys
from pathlib import Path

from forerun.base.errors import ForerunError
from forerun.store.catalogue import HubSource
from forerun.store.hub import fetch_repository, find_repository


def main() -> None:
    """Run once."""
    repository_name, revision, folder = sys.argv[1:]
    heard: list[tuple[int, int]] = []
    try:
        repository = find_repository(HubSource(repository_name, revision))
        fetch_repository(repository, Path(folder), lambda done, total: heard.append((done, total)))
    except ForerunError as error:
        outcome: dict[str, object] = {"error": type(error).__name__, "message": str(error)}
    else:
        outcome = {"commit": repository.commit, "key": repository.download_key}
    print(json.dumps({**outcome, "heard": heard}))  # noqa: T201 - this is its answer


if __name__ == "__main__":
    main()
