"""What of the system's memory a process may use.

The groups of a container are tested with the scheduler's devices (08 FIT-1).
"""

import sys

from forerun.base import machine_memory
from forerun.base.machine_memory import system_memory


def test_a_system_without_proc_says_what_it_can(tmp_path, monkeypatch):
    """02 STR-7: macOS tells the total, Windows nothing."""
    monkeypatch.setattr(machine_memory.os, "sysconf", lambda name: 2 if "PAGES" in name else 4096)
    assert system_memory(tmp_path) == machine_memory.SystemMemory(None, 8192)
    monkeypatch.delattr(machine_memory.os, "sysconf")
    assert system_memory(tmp_path) == machine_memory.SystemMemory(None, None)


def test_this_machine_says_how_much_it_has():
    found = system_memory()
    assert found.total is not None or sys.platform == "win32"
