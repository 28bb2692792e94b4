"""`forerun ps`: the models that a server has loaded."""

import time
from datetime import datetime

import click

from forerun.base.json_types import JsonObject
from forerun.base.units import format_bytes
from forerun.cli.list import spoken, table
from forerun.cli.reach import needed_server
from forerun.settings import Settings

HEAD = ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"]
FOREVER_S = 10 * 365 * 86400.0


@click.command("ps")
@click.pass_obj
def command(settings: Settings) -> None:
    """List the models that the server has loaded, and until when.

    SIZE is weights, what the live tokens take and stored conversations (`forerun cache` shows
    these). A process takes more, such as buffers of an earlier, longer conversation: see /metrics.
    """
    click.echo(table(HEAD, [_row(entry) for entry in needed_server(settings).loaded()]))


def _row(entry: JsonObject) -> list[str]:
    size, on_gpu = _count(entry.get("size")), _count(entry.get("size_vram"))
    return [
        str(entry.get("name")),
        str(entry.get("digest")).removeprefix("sha256:")[:12],
        format_bytes(size),
        _processor(size, on_gpu),
        str(entry.get("context_length", "")),
        _until(str(entry.get("expires_at"))),
    ]


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _processor(size: int, on_gpu: int) -> str:
    if on_gpu == 0:
        return "100% CPU"
    if on_gpu >= size:
        return "100% GPU"
    share = round(100 * on_gpu / size)
    return f"{100 - share}%/{share}% CPU/GPU"


def _until(stamp: str) -> str:
    try:
        left_s = datetime.fromisoformat(stamp).timestamp() - time.time()
    except (ValueError, OverflowError):
        return stamp
    if left_s > FOREVER_S:
        return "forever"
    return f"{spoken(left_s)} from now" if left_s > 0 else "stopping"
