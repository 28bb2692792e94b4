"""A cache report as a tree for a terminal or a pipe."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.cells import cell_len, set_cell_size

from forerun.base.units import format_bytes, format_seconds
from forerun.protocol.cache import CacheNode, CacheReport

HEAD = ("POSITIONS", "TOKENS", "SIZE", "USED", "FLAGS")
LESS = (  # columns, most first: the widest that leaves room for the text is drawn
    HEAD,
    ("POSITIONS", "TOKENS", "SIZE", "FLAGS"),
    ("POSITIONS", "TOKENS", "SIZE"),
    ("POSITIONS", "SIZE"),
    ("POSITIONS",),
)
GAP = "  "
WANTED_TEXT = 20  # columns; for less, other columns are left out
BOTH_ENDS = 20  # columns in which a text is cut in its middle; in fewer, at its end
_AGES = ((86400 * 2, 86400, "d"), (3600 * 2, 3600, "h"), (60 * 2, 60, "m"), (0, 1, "s"))


@dataclass(frozen=True, slots=True)
class Lines:
    """What a tree is drawn with: to a child with siblings below it, to the last, and beside.

    `onward` leads to an only child, which stands straight below its parent.
    """

    branch: str = "├─ "
    last: str = "└─ "
    beside: str = "│  "
    onward: str = "↓ "
    cut: str = "…"


ASCII = Lines("|- ", "`- ", "|  ", "v ", "...")


def show(name: str, report: CacheReport) -> None:
    """Draw a cache as wide as the terminal; whole where there is none."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo(picture(name, report, width=width, lines=drawable()))


def picture(
    name: str, report: CacheReport, *, width: int | None = None, lines: Lines | None = None
) -> str:
    """The cache as text. `width` in columns: the texts are cut to fit; None: they are whole."""
    lines = lines or Lines()
    live = f"{report.live_tokens:,} of {report.context:,} tokens live"
    stored = f"{format_bytes(report.snapshots)} of {format_bytes(report.budget)} stored"
    title = [f"{name}: {live} ({format_bytes(report.live_bytes)}), {stored}"]
    if report.as_of_seconds:
        ago = format_seconds(report.as_of_seconds)
        title.append(f"as it was {ago} ago; the model is answering")
    if not report.nodes:
        return "\n".join([*title, "Nothing is cached."])
    leads = leads_of(report.nodes, lines)
    rows = [_row(node, lead) for node, lead in zip(report.nodes, leads, strict=True)]
    body, room = _columns(rows, width)
    texts = ["TEXT", *(_cut(_printable(node.text, lines), room, lines) for node in report.nodes)]
    column = max(map(len, body))
    drawn = [
        f"{line.ljust(column)}{GAP}{text}".rstrip() for line, text in zip(body, texts, strict=True)
    ]
    return "\n".join([*title, "", *drawn, "", _total(report)])


def leads_of(nodes: Sequence[CacheNode], lines: Lines) -> list[str]:
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
        if place in alone and node.depth:
            leads.append(above + lines.onward)
            beside[node.depth] = above
            continue
        leads.append(above + (lines.last if place in last else lines.branch))
        beside[node.depth] = above + (" " * len(lines.last) if place in last else lines.beside)
    return leads


def drawable() -> Lines:
    """Lines that standard output can show."""
    drawn = Lines()
    characters = drawn.branch + drawn.last + drawn.beside + drawn.onward + drawn.cut
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII
    return drawn


def _columns(rows: Sequence[dict[str, str]], width: int | None) -> tuple[list[str], int | None]:
    """The head and the rows with as many columns as leave room for the text; and that room."""
    for names in LESS:
        cells = [names, *([row[name] for name in names] for row in rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(names))]
        body = [
            GAP.join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True))
            for row in cells
        ]
        if width is None:
            return body, None
        room = width - len(body[0]) - len(GAP)
        if room >= WANTED_TEXT:
            break
    return body, max(room, 1)


def _row(node: CacheNode, lead: str) -> dict[str, str]:
    flags = {
        "live": node.active or node.lazy,
        "here": node.frontier,
        "prompt": node.user,
        "through": not node.complete,
    }
    cells = (
        f"{lead}{node.start}-{node.end}",
        str(node.end - node.start),
        format_bytes(node.bytes),
        _age(node.age_seconds),
        ",".join(name for name, holds in flags.items() if holds),
    )
    return dict(zip(HEAD, cells, strict=True))


def _age(seconds: float) -> str:
    """ "40s", "3m", "2h", "5d"."""
    _, unit_s, unit = next(step for step in _AGES if seconds >= step[0])
    return f"{seconds / unit_s:.0f}{unit}"


def _total(report: CacheReport) -> str:
    depths = [node.depth for node in report.nodes]
    ends = sum(deeper <= depth for depth, deeper in zip(depths, [*depths[1:], 0], strict=True))
    counts = f"{_count(len(depths), 'stretch', 'es')}, {_count(ends, 'conversation', 's')}"
    return f"{counts}, {format_bytes(report.snapshots)}"


def _count(number: int, word: str, plural: str) -> str:
    return f"{number:,} {word}{plural if number != 1 else ''}"


def _printable(text: str, lines: Lines) -> str:
    """What a user typed may hold a terminal's commands."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown.replace("…", lines.cut)


def _cut(text: str, room: int | None, lines: Lines) -> str:
    """Both ends of the text in `room` columns, or its beginning where these are few."""
    if room is None or cell_len(text) <= room:
        return text
    left = room - len(lines.cut)
    tail = text if room >= BOTH_ENDS else ""
    while cell_len(tail) > left // 2:
        tail = tail[1:]
    tail = tail.partition(" ")[2] or tail  # the first word is most likely half a one
    head = set_cell_size(text, max(0, left - cell_len(tail)))
    cut = f"{head.rstrip()}{lines.cut}{tail.lstrip()}"
    return set_cell_size(cut, room).rstrip()
