"""Runs pip for `wheel`, in a process of its own that ends when its parent does.

    python pip_child.py TEMPORARY_FOLDER PIP_ARGUMENT...

pip unpacks into its temporary folder while it downloads. Here that lies in the store: on the disk
that must have the room anyway, and where the parent can watch it grow.
"""

import os
import runpy
import sys
import tempfile
import threading


def main() -> None:
    """Become `python -m pip` with the arguments after the first."""
    tempfile.tempdir = sys.argv[1]
    sys.argv[:] = ["pip", *sys.argv[2:]]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    """Standard input is a pipe that nobody writes to: it ends with the process that holds it."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
