"""How `forerun cache` draws what a model keeps of conversations."""

import dataclasses
import io
import sys

import pytest

from forerun.cli.cache_picture import ASCII, Lines, drawable, picture
from forerun.protocol.cache import CacheNode, CacheReport

PLAIN = Lines()


def node(depth, start, end, text="", **fields):
    flags = dict.fromkeys(("active", "frontier", "user", "lazy"), False)
    about = {"bytes": 1000, "age_seconds": 200.0, "complete": True, **flags, **fields}
    return CacheNode(depth=depth, start=start, end=end, text=text, **about)


def report(*nodes, as_of_seconds=0.0):
    return CacheReport(
        context=8192,
        budget=2_000_000_000,
        snapshots=sum(each.bytes for each in nodes),
        live_tokens=4120,
        live_bytes=94_900_000,
        freed_bytes=0,
        as_of_seconds=as_of_seconds,
        nodes=list(nodes),
    )


def tree(shown):
    """The lines of the nodes alone."""
    return shown.splitlines()[3:-2]


def test_head_rows_and_total():
    shown = picture(
        "smollm2:135m",
        report(
            node(0, 0, 30, "You are", active=True, user=True, bytes=0, lazy=True),
            node(1, 30, 4120, "and now", active=True, frontier=True, age_seconds=1.0),
            node(1, 30, 812, "but then", complete=False, bytes=35_200_000),
            node(2, 812, 820, "on", bytes=0, lazy=True),
        ),
    )
    assert shown.splitlines() == [
        "smollm2:135m: 4,120 of 8,192 tokens live (94.9 MB), 35.2 MB of 2.0 GB stored",
        "",
        "POSITIONS        TOKENS  SIZE     USED  FLAGS        TEXT",
        "└─ 0-30          30      0 B      3m    live,prompt  You are",
        "   ├─ 30-4120    4090    1.0 KB   1s    live,here    and now",
        "   └─ 30-812     782     35.2 MB  3m    through      but then",
        "      ↓ 812-820  8       0 B      3m    live         on",
        "",
        "4 stretches, 2 conversations, 35.2 MB",
    ]


def test_one_of_each_is_told_as_one():
    assert picture("m", report(node(0, 0, 9))).splitlines()[-1] == (
        "1 stretch, 1 conversation, 1.0 KB"
    )


@pytest.mark.parametrize(
    ("depths", "conversations"), [([0, 0], 2), ([0, 1, 2], 1), ([0, 1, 2, 2, 1, 0], 4)]
)
def test_a_conversation_is_a_way_down_to_an_end(depths, conversations):
    shown = picture("m", report(*(node(depth, n, n + 1) for n, depth in enumerate(depths))))
    assert f" {conversations} conversation" in shown.splitlines()[-1]


def test_a_cache_that_holds_nothing_says_so():
    head, body = picture("m", report()).splitlines()
    assert head.startswith("m: 4,120 of 8,192 tokens live")
    assert body == "Nothing is cached."


@pytest.mark.parametrize("nodes", [(), (node(0, 0, 9),)])
def test_what_is_old_says_how_old(nodes):
    shown = picture("m", report(*nodes, as_of_seconds=3.21))
    assert shown.splitlines()[1] == "as it was 3.2 s ago; the model is answering"
    assert "as it was" not in picture("m", report(*nodes))


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(0.0, "0s"), (40.2, "40s"), (119, "119s"), (121, "2m"), (7300, "2h"), (260_000, "3d")],
)
def test_ages_are_short(seconds, age):
    (line,) = tree(picture("m", report(node(0, 0, 9, age_seconds=seconds))))
    assert line.split()[-1] == age


@pytest.mark.parametrize(
    ("depths", "leads"),
    [
        ([0], ["└─ "]),
        ([0, 1, 2, 3], ["└─ ", "   ↓ ", "   ↓ ", "   ↓ "]),  # a long conversation stays left
        ([0, 0], ["├─ ", "└─ "]),
        ([0, 1, 1], ["└─ ", "   ├─ ", "   └─ "]),
        ([0, 1, 2, 0, 1], ["├─ ", "│  ↓ ", "│  ↓ ", "└─ ", "   ↓ "]),
        (
            [0, 1, 2, 2, 1, 2, 3, 3],
            [
                "└─ ",
                "   ├─ ",
                "   │  ├─ ",
                "   │  └─ ",
                "   └─ ",
                "      ↓ ",
                "      ├─ ",
                "      └─ ",
            ],
        ),
    ],
)
@pytest.mark.parametrize("drawn", [PLAIN, ASCII])
def test_lines_part_where_conversations_do(depths, leads, drawn):
    """An only child is marked as what goes on, and is not taken for its parent's sibling."""
    nodes = [node(depth, number, number + 1) for number, depth in enumerate(depths)]
    shown = tree(picture("m", report(*nodes), lines=drawn))
    for number, (line, lead) in enumerate(zip(shown, leads, strict=True)):
        for plain, other in zip(
            dataclasses.astuple(PLAIN)[:4], dataclasses.astuple(drawn)[:4], strict=True
        ):
            lead = lead.replace(plain, other)
        assert line.startswith(f"{lead}{number}-{number + 1} ")


@pytest.mark.parametrize("drawn", [PLAIN, ASCII])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_texts_are_cut_to_the_terminal(width, drawn):
    """Wide characters count as two columns."""
    nodes = node(0, 0, 9, "日本" * 40), node(1, 9, 12, "a" * 90 + "…" + "b" * 20)
    body = picture("m", report(*nodes), width=width, lines=drawn).splitlines()[2:-2]
    columns = [sum(2 if ord(c) > 0x3000 else 1 for c in line) for line in body]
    assert max(columns) <= width
    assert all(drawn.cut in line for line in body[1:]) or width > 150


def test_both_ends_of_a_cut_text_stay():
    text = "A tide refers to the rise and fall of the sea, twice a day … Who found that out?"
    (line,) = tree(picture("m", report(node(0, 0, 9, text)), width=80))
    assert "A tide refers to the" in line
    assert line.endswith("found that out?")
    assert "…" in line
    assert len(line) <= 80


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (None, ["POSITIONS", "TOKENS", "SIZE", "USED", "FLAGS", "TEXT"]),
        (80, ["POSITIONS", "TOKENS", "SIZE", "USED", "FLAGS", "TEXT"]),
        (64, ["POSITIONS", "TOKENS", "SIZE", "USED", "FLAGS", "TEXT"]),
        (57, ["POSITIONS", "TOKENS", "SIZE", "FLAGS", "TEXT"]),
        (50, ["POSITIONS", "TOKENS", "SIZE", "TEXT"]),
        (42, ["POSITIONS", "SIZE", "TEXT"]),
        (34, ["POSITIONS", "TEXT"]),
        (20, ["POSITIONS", "TEXT"]),
    ],
)
def test_in_a_narrow_terminal_the_text_stays(width, columns):
    nodes = node(0, 0, 120, "hello " * 9, active=True), node(1, 120, 350, "there " * 9)
    shown = picture("m", report(*nodes), width=width)
    assert shown.splitlines()[2].split() == columns
    assert "hel" in shown


def test_in_a_pipe_texts_are_whole():
    assert "x" * 300 in picture("m", report(node(0, 0, 9, "x" * 300)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31mred", "\\x1b[31mred"), ("\u202egnp", "\\u202egnp"), ("naïve 日本", "naïve 日本")],
)
def test_what_a_user_typed_gives_the_terminal_no_commands(text, shown):
    (line,) = tree(picture("m", report(node(0, 0, 9, text))))
    assert line.endswith(f" {shown}")


@pytest.mark.parametrize(("encoding", "lines"), [("utf-8", PLAIN), ("ascii", ASCII)])
def test_a_terminal_without_the_characters_gets_others(monkeypatch, encoding, lines):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert drawable() == lines
