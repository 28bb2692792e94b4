"""Renders each template of standard input in a process of its own, with limits the kernel keeps.

Reads a JSON object of templates by name; writes one JSON line for each: its name, what rendering it
came to, the seconds of processor time and the MB of memory it took. A template that escapes the
limits of forerun is killed here and does not take the machine's memory.
"""

import json
import os
import resource
import sys
from datetime import datetime
from pathlib import Path

from forerun.base.errors import RequestError
from forerun.chat.template import Template

MEMORY = 600 * 2**20
SECONDS = 10
NOW = datetime(2026, 3, 4, 5, 6)


def _field(name: str) -> int:
    """One size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) << 10


def _outcome(source: str) -> str:
    try:
        text = Template(source).render({"messages": [{"role": "user", "content": "hi"}]}, NOW)
    except RequestError as error:
        return f"RequestError: {error}"
    except BaseException as error:  # noqa: BLE001 whatever escapes is the finding
        return f"{type(error).__name__}: {error}"
    return f"a text of {len(text)} characters"


def _imprison(name: str, source: str) -> None:
    most = _field("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    Path("/proc/self/clear_refs").write_text("5")  # starts the peak anew
    before = _field("VmRSS")
    outcome = _outcome(source)
    used = resource.getrusage(resource.RUSAGE_SELF)
    megabytes = (_field("VmHWM") - before) >> 20
    _tell(name, outcome, used.ru_utime + used.ru_stime, megabytes)


def _tell(name: str, outcome: str, seconds: float, megabytes: int) -> None:
    sys.stdout.write(json.dumps([name, outcome, seconds, megabytes]) + "\n")
    sys.stdout.flush()


def main() -> None:
    for name, source in json.load(sys.stdin).items():
        child = os.fork()
        if not child:
            _imprison(name, source)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            _tell(name, f"killed, status {status}", SECONDS, 0)


if __name__ == "__main__":
    main()
