"""A message is one line of a text log, whatever stands in it."""

import subprocess
import sys

WARN = """
from forerun.base.logs import configure, logger
configure("warning")
logger("forerun.test").warning("tensor %s is not used", "a\\nb\\x1b[2J\\u2028\\ud800")
"""


def test_control_characters_are_escaped() -> None:
    """F13: a name out of a file ends no line, moves no cursor and cannot keep it from being
    written."""
    ran = subprocess.run(
        [sys.executable, "-c", WARN], capture_output=True, encoding="utf-8", check=True, timeout=60
    )
    (line,) = ran.stderr.splitlines()
    assert line.endswith(r"forerun.test: tensor a\nb\x1b[2J\u2028\ud800 is not used")
