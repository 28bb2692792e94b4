"""How `forerun cache` draws what a model keeps of conversations."""

import dataclasses
import io
import sys

import pytest

from forerun.cli.cache import ASCII, Lines, _lines, picture
from forerun.protocol.cache import CacheNode, CacheReport

PLAIN = Lines()


def node(depth, start, end, text="", **fields):
    flags = dict.fromkeys(("active", "frontier", "user", "lazy"), False)
    about = {"bytes": 1000, "age_seconds": 200.0, "complete": True, **flags, **fields}
    return CacheNode(depth=depth, start=start, end=end, text=text, **about)


def report(*nodes):
    return CacheReport(
        context=8192,
        budget=2_000_000_000,
        snapshots=sum(each.bytes for each in nodes),
        live_tokens=4120,
        live_bytes=94_900_000,
        freed_bytes=0,
        nodes=list(nodes),
    )


def test_head_rows_and_total():
    shown = picture(
        "smollm2:135m",
        report(
            node(0, 0, 30, "You are", active=True, user=True, bytes=0, lazy=True),
            node(1, 30, 4120, "and now", active=True, frontier=True, age_seconds=1.0),
            node(1, 30, 812, "but then", complete=False, bytes=35_200_000),
        ),
    )
    assert shown.splitlines() == [
        "smollm2:135m: 4,120 of 8,192 tokens live (94.9 MB), 35.2 MB of 2.0 GB stored",
        "",
        "POSITIONS     TOKENS    SIZE       USED             FLAGS               TEXT",
        "0-30          30        0 B        3 minutes ago    active,user,lazy    You are",
        "├─ 30-4120    4090      1.0 KB     just now         active,frontier     and now",
        "└─ 30-812     782       35.2 MB    3 minutes ago    partial             but then",
        "",
        "3 stretches, 35.2 MB",
    ]


def test_a_cache_that_holds_nothing_says_so():
    head, body = picture("m", report()).splitlines()
    assert head.startswith("m: 4,120 of 8,192 tokens live")
    assert body == "Nothing is cached."


@pytest.mark.parametrize(
    ("depths", "leads"),
    [
        ([0], [""]),
        ([0, 1, 2, 3], ["", "", "", ""]),  # one long conversation stays at the margin
        ([0, 0], ["├─ ", "└─ "]),
        ([0, 1, 1], ["", "├─ ", "└─ "]),
        ([0, 1, 2, 0, 1], ["├─ ", "│  ", "│  ", "└─ ", "   "]),
        (
            [0, 1, 2, 2, 1, 2, 3, 3],
            ["", "├─ ", "│  ├─ ", "│  └─ ", "└─ ", "   ", "   ├─ ", "   └─ "],
        ),
        ([0, 1, 1, 0, 1, 1], ["├─ ", "│  ├─ ", "│  └─ ", "└─ ", "   ├─ ", "   └─ "]),
    ],
)
@pytest.mark.parametrize("drawn", [PLAIN, ASCII])
def test_lines_part_where_conversations_do(depths, leads, drawn):
    nodes = [node(depth, number, number + 1) for number, depth in enumerate(depths)]
    shown = picture("m", report(*nodes), lines=drawn).splitlines()[3:-2]
    swapped = dict(zip(dataclasses.astuple(PLAIN), dataclasses.astuple(drawn), strict=True))
    for number, (line, lead) in enumerate(zip(shown, leads, strict=True)):
        expected = "".join(swapped.get(lead[i : i + 3], "   ") for i in range(0, len(lead), 3))
        assert line.startswith(f"{expected}{number}-{number + 1}")


@pytest.mark.parametrize("width", [70, 80, 100, 200])
def test_texts_are_cut_to_the_terminal(width):
    """Wide characters count as two columns."""
    shown = picture("m", report(node(0, 0, 9, "日本" * 40), node(1, 9, 12, "a" * 90)), width=width)
    table = shown.splitlines()[2:-2]
    columns = [sum(2 if ord(c) > 0x3000 else 1 for c in line) for line in table]
    assert max(columns) <= width
    assert all(line.endswith("…") for line in table[1:]) == (width < 130)


@pytest.mark.parametrize("width", [20, 50, 64])
def test_in_a_very_narrow_terminal_there_are_no_texts(width):
    shown = picture("m", report(node(0, 0, 9, "hello")), width=width)
    assert "TEXT" not in shown
    assert "hello" not in shown
    assert "0-9" in shown


def test_in_a_pipe_texts_are_whole():
    assert "x" * 300 in picture("m", report(node(0, 0, 9, "x" * 300)))


@pytest.mark.parametrize(("encoding", "lines"), [("utf-8", PLAIN), ("ascii", ASCII)])
def test_a_terminal_without_the_characters_gets_others(monkeypatch, encoding, lines):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert _lines() == lines
