"""`forerun cache MODEL`: the conversations that a loaded model keeps warm."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.cells import cell_len, set_cell_size

from forerun.base.errors import RequestError
from forerun.base.units import format_bytes
from forerun.cli.list import ago, table
from forerun.cli.reach import server_in_reach
from forerun.cli.served import read_cache
from forerun.protocol.cache import CacheNode, CacheReport
from forerun.settings import Settings
from forerun.store.names import ModelName

HEAD = ["POSITIONS", "TOKENS", "SIZE", "USED", "FLAGS", "TEXT"]
GAP = 4  # columns between those of a table
LEAST_TEXT = 8  # columns; where fewer are left no text is shown


@dataclass(frozen=True, slots=True)
class Lines:
    """What a tree is drawn with: to a child that has siblings after it, to the last, and beside."""

    branch: str = "├─ "
    last: str = "└─ "
    beside: str = "│  "


ASCII = Lines("|- ", "`- ", "|  ")


@click.command("cache")
@click.argument("name", metavar="MODEL")
@click.option("--clear", is_flag=True, help="Forget all of it first, and say what that freed.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of the tree.")
@click.pass_obj
def command(settings: Settings, name: str, *, clear: bool, as_json: bool) -> None:
    """Show what a loaded model has cached: the live conversation, and those it can go back to.

    Each line is a stretch of tokens; where conversations part, so do the lines. SIZE is what is
    stored for it, and counts towards the budget (FORERUN_CACHE_BYTES).

    \b
    active    part of the conversation in the live caches
    frontier  where that one ends
    user      a point that a prompt asked to be kept
    lazy      stands in the live caches, and takes no memory of its own
    partial   a request goes on from an earlier point than its end
    """
    model = ModelName.parse(name)
    client = server_in_reach(settings)
    if client is None:
        raise RequestError(
            f"no forerun server answers at {settings.host}, so nothing is cached: a cache lives as "
            "long as its model is loaded; `forerun serve` starts a server"
        )
    found = client.post("/api/cache", {"model": str(model), "clear": clear})
    if as_json:
        click.echo(json.dumps(found))
        return
    report = read_cache(found)
    if clear:
        click.echo(f"freed {format_bytes(report.freed_bytes)} of {model}", err=True)
    show(str(model), report)


def show(name: str, report: CacheReport) -> None:
    """Draw a cache as wide as the terminal; whole where there is none."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo(picture(name, report, width=width, lines=_lines()))


def picture(
    name: str, report: CacheReport, *, width: int | None = None, lines: Lines | None = None
) -> str:
    """The cache as text. `width` in columns: the texts are cut to fit; None: they are whole."""
    live = f"{report.live_tokens:,} of {report.context:,} tokens live"
    stored = f"{format_bytes(report.snapshots)} of {format_bytes(report.budget)} stored"
    title = f"{name}: {live} ({format_bytes(report.live_bytes)}), {stored}"
    if not report.nodes:
        return f"{title}\nNothing is cached."
    leads = _leads(report.nodes, lines or Lines())
    rows = [_row(node, lead) for node, lead in zip(report.nodes, leads, strict=True)]
    texts = ["TEXT", *(node.text for node in report.nodes)]
    body = table(HEAD[:-1], rows).splitlines()
    room = None if width is None else width - max(map(len, body)) - GAP
    if room is None or room >= LEAST_TEXT:
        column = max(map(len, body)) + GAP
        body = [
            (line.ljust(column) + _cut(text, room)).rstrip()
            for line, text in zip(body, texts, strict=True)
        ]
    count = len(report.nodes)
    total = f"{count} stretch{'' if count == 1 else 'es'}, {format_bytes(report.snapshots)}"
    return "\n".join([title, "", *body, "", total])


def _leads(nodes: Sequence[CacheNode], lines: Lines) -> list[str]:
    """What stands before each node. One without siblings goes on straight below its parent."""
    families: list[list[int]] = []  # children of the same parent, by their places in `nodes`
    open_families: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        if not place or node.depth > nodes[place - 1].depth:
            families.append([])
            open_families[node.depth] = families[-1]
        open_families[node.depth].append(place)
    last = {family[-1] for family in families}
    alone = {family[0] for family in families if len(family) == 1}
    leads, beside = [], {-1: ""}
    for place, node in enumerate(nodes):
        above = beside[node.depth - 1]
        if place in alone:
            leads.append(above)
            beside[node.depth] = above
            continue
        leads.append(above + (lines.last if place in last else lines.branch))
        beside[node.depth] = above + (" " * len(lines.last) if place in last else lines.beside)
    return leads


def _row(node: CacheNode, lead: str) -> list[str]:
    flags = {
        "active": node.active,
        "frontier": node.frontier,
        "user": node.user,
        "lazy": node.lazy,
        "partial": not node.complete,
    }
    return [
        f"{lead}{node.start}-{node.end}",
        str(node.end - node.start),
        format_bytes(node.bytes),
        ago(node.age_seconds),
        ",".join(name for name, holds in flags.items() if holds),
    ]


def _cut(text: str, room: int | None) -> str:
    if room is None or cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1).rstrip() + "…"


def _lines() -> Lines:
    """Those that standard output can show."""
    drawn = Lines()
    try:
        (drawn.branch + drawn.last + drawn.beside).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII
    return drawn
