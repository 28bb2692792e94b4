"""docs/server.md tells every status that an error can have."""

import re
from pathlib import Path

from forerun.api.errors import _OPENAI_TYPES
from forerun.base import errors

PAGE = Path(__file__).parents[3] / "docs" / "server.md"


def test_every_status_stands_in_the_table_of_errors() -> None:
    """But that of a client who has left, which nobody reads (08 API-14)."""
    _, _, section = PAGE.read_text().partition("## Errors\n")
    told = {int(status) for status in re.findall(r"^\| (\d{3}) \|", section, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = {kind.status for kind in kinds if issubclass(kind, errors.ForerunError)}
    assert raised | set(_OPENAI_TYPES) | {403} == told | {errors.CancelledError.status}
