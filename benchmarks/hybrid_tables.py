"""What `hybrid.py` found, as Markdown tables."""

from collections.abc import Mapping, Sequence

from benchmarks.protocol import Interval

INT4, BF16, PEER = "forerun int4", "forerun bf16", "transformers bf16"
OURS = (INT4, BF16)
EVERYBODY = (*OURS, PEER)
READING = "plain read loop"
ALL, ONE_WAY = "all kept", "no way back"  # what first rounds of a pair are compared with
SPEED, MILLISECONDS, SHARE = ", tokens/s", ", ms", ", % of a round"

Results = Mapping[str, Interval]


def markdown(results: Results) -> str:
    """The tables of one question's results."""
    places = [_middle(name) for name in results if name.startswith(INT4) and name.endswith(SPEED)]
    if places:
        return "\n\n".join(speeds(results, place) for place in places)
    if any(name.endswith(SHARE) for name in results):
        return refusals(results)
    return columns(results)


def speeds(results: Results, place: str) -> str:
    """Everybody's speed at one place; of decoding what it moves, too."""
    header = [f"{place}, tokens/s", *(f"{ours} / it" for ours in OURS)]
    reading = results.get(f"{READING}, {place}, GB/s")
    bounded = reading is not None
    if bounded:
        header += ["GB/s that its tokens move", "share of a plain read loop"]
    rows = []
    for who in EVERYBODY:
        row = [who, _cell(results, f"{who}, {place}{SPEED}")]
        row += [_cell(results, f"{ours} / {who}, {place}") for ours in OURS]
        if bounded:
            row += [_cell(results, f"{who}, {place}, GB/s")]
            row += [_cell(results, f"{who} / {READING}, {place}")]
        rows.append(row)
    if reading is not None:
        rows.append([READING, "", "", "", figure(reading), ""])
    return table(["", *header], rows)


def columns(results: Results) -> str:
    """Milliseconds of a round by its columns, and what it is of a round of one."""
    names = [_middle(name) for name in results if name.startswith(INT4) and name.endswith("ms")]
    rows = []
    for who in OURS:
        rows.append([f"{who}, ms", *(_cell(results, f"{who}, {n}{MILLISECONDS}") for n in names)])
        by_one = [_cell(results, f"{who}, {n} / {names[0]}") for n in names]
        rows.append([f"{who}, in rounds of one", *by_one])
    return table(["", *names], rows)


def refusals(results: Results) -> str:
    """What a round costs by the drafts that it keeps, and what `begin` and `commit` take."""
    end = f" beside {ONE_WAY}"
    names = [_middle(name) for name in results if name.startswith(INT4) and name.endswith(SHARE)]
    rows = [[name.removesuffix(end)] for name in names if name.endswith(end)]
    whole = ["a round that keeps all, ms"]
    header = [""]
    for who in OURS:
        header += [f"{who}, % beside {ALL}", f"% beside {ONE_WAY}", "begin and commit, ms"]
        for row in rows:
            row += [
                _cell(results, f"{who}, {row[0]} beside {ALL}{SHARE}"),
                _cell(results, f"{who}, {row[0]}{end}{SHARE}"),
                _cell(results, f"{who}, {row[0]}, begin and commit{MILLISECONDS}"),
            ]
        whole += [_cell(results, f"{who}, {ALL}{MILLISECONDS}"), "", ""]
    return table(header, [*rows, whole])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    assert all(len(row) == len(header) for row in rows), (header, rows)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def figure(found: Interval) -> str:
    """A median with its interval, three digits of each."""
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cell(results: Results, name: str) -> str:
    return figure(results[name]) if name in results else ""


def _middle(name: str) -> str:
    """What stands between the contender and the unit."""
    return name.partition(", ")[2].rpartition(", ")[0]
