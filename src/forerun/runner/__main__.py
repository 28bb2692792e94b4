"""`python -m forerun.runner MODEL --socket PATH`: serves one model until its parent goes.

The socket listens before torch is imported; the line "listening" on standard output says so. The
parent holds our standard input open, and its end is ours (spec 08 RUN-14).
"""

import argparse
import asyncio
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from forerun.base.errors import LAST_WORDS, ForerunError, MachineError
from forerun.base.logs import configure, logger
from forerun.runner.request import LoadRequest
from forerun.settings import Settings

log = logger("forerun.runner")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; the reason of a failed load is the last line of standard error."""
    asked = _parser().parse_args(arguments)
    try:
        settings = Settings.from_environment()
        configure(settings.log or "warning", settings.log_format)
        listener = _listening(asked.socket)
    except ForerunError as error:
        return _failed(str(error))
    with listener:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads standard output further
        threading.Thread(target=_end_with_parent, args=(asked.socket,), daemon=True).start()
        reason = _serve(listener, asked, settings)
    return _failed(reason) if reason else 0


def _failed(reason: str) -> int:
    sys.stderr.write(f"{LAST_WORDS}{reason}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forerun.runner")
    parser.add_argument("model", help="name of a model in the store")
    parser.add_argument("--socket", type=Path, required=True, help="where to listen")
    parser.add_argument("--num-ctx", type=int, help="tokens of context")
    parser.add_argument("--num-thread", type=int, help="CPU threads")
    parser.add_argument("--device", help="cpu, cuda, cuda:N or mps")
    return parser


def _listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise MachineError(
            f"cannot listen at {str(path)!r}: {error}; choose another path"
        ) from None
    path.chmod(0o600)
    listener.listen()
    return listener


def _end_with_parent(path: Path) -> None:
    while os.read(sys.stdin.fileno(), 4096):  # not `sys.stdin`: its lock would outlive us
        pass
    path.unlink(missing_ok=True)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()  # made for this socket by a parent that can no longer do it
    os._exit(0)


def _serve(listener: socket.socket, asked: argparse.Namespace, settings: Settings) -> str:
    """Serve until told to end; returns why the load failed, "" if it did not."""
    from forerun.runner.serving import Runner

    request = LoadRequest.under(
        settings,
        asked.model,
        num_ctx=asked.num_ctx,
        device=asked.device,
        threads=asked.num_thread,
    )
    return asyncio.run(Runner(request).run(listener))


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # the device thread may be inside a forward that nobody waits for
