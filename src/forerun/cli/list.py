"""`forerun list`: the models of the store, or those that can be pulled."""

import time

import click

from forerun.base.errors import ForerunError
from forerun.base.units import format_bytes
from forerun.settings import Settings
from forerun.store.catalogue import catalogue
from forerun.store.describe import describe
from forerun.store.store import Entry, Store

_STEPS = ((86400 * 2, 86400, "days"), (3600 * 2, 3600, "hours"), (60 * 2, 60, "minutes"))


@click.command("list")
@click.option("--catalogue", "built_in", is_flag=True, help="Show the models that can be pulled.")
@click.pass_obj
def command(settings: Settings, built_in: bool) -> None:
    """List the models that are here, newest first."""
    if built_in:
        offered = [
            [str(entry.name), format_bytes(entry.download_bytes), entry.license, entry.description]
            for entry in catalogue()
        ]
        click.echo(table(["NAME", "DOWNLOAD", "LICENSE", "DESCRIPTION"], offered))
        return
    store = Store(settings.models)
    rows = [
        [
            str(entry.name),
            str(entry.digest).partition(":")[2][:12],
            entry.damage or format_bytes(entry.size),
            _weights(store, entry),
            ago(time.time() - entry.modified_at),
        ]
        for entry in store.entries()
    ]
    click.echo(table(["NAME", "ID", "SIZE", "WEIGHTS", "MODIFIED"], rows))
    if not rows:
        click.echo("No models yet. Try: forerun pull smollm2:135m", err=True)


def _weights(store: Store, entry: Entry) -> str:
    """The type of a model's weights, "" where it cannot be opened or is gone."""
    try:
        return describe(store.get(entry.name)).quantisation
    except ForerunError:
        return ""


def table(head: list[str], rows: list[list[str]]) -> str:
    """Columns side by side, as wide as their widest cell, for people and for `awk` alike."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = (
        "    ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [head, *rows]
    )
    return "\n".join(line.rstrip() for line in lines)


def ago(seconds: float) -> str:
    """ "3 hours ago"."""
    return "just now" if seconds < 10 else f"{spoken(seconds)} ago"


def spoken(seconds: float) -> str:
    """ "3 hours", in the largest unit that counts to two."""
    for least, unit_s, unit in _STEPS:
        if seconds >= least:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} seconds"
