"""Draw a benchmark's last line of JSON as bars with their intervals, as an SVG.

    python benchmarks/peers.py ... | tail -1 | python benchmarks/plot.py docs/benchmarks/peers.svg

Only the results that share the unit of the first one are drawn ("name, unit"). A second argument
names one of the report's `curves`, to be drawn as lines instead.
"""

import json
import sys
from html import escape
from pathlib import Path

LEFT, BAR, GAP, WIDTH, TOP = 310, 22, 12, 420, 44
OURS, THEIRS, INK, GREY = "#2563eb", "#9ca3af", "#111827", "#6b7280"
COLOURS = (OURS, "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#0891b2", "#a16207", "#db2777", INK)
HIGH, SIDE, LEGEND = 260, 60, 20  # of the lines' field, left of it, and of a line that names one


def draw(report: dict[str, object]) -> str:
    """The SVG of one report."""
    results = report["results"]
    assert isinstance(results, dict), "a report has results"
    unit = next(iter(results)).rpartition(", ")[2]
    rows = [
        (name.removesuffix(f", {unit}"), figure)
        for name, figure in results.items()
        if name.endswith(f", {unit}")
    ]
    most = max(figure["high"] for _, figure in rows)
    height = TOP + len(rows) * (BAR + GAP) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 90}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="24" font-weight="600">{escape(str(report["question"]))}, {unit}</text>',
    ]
    for place, (name, figure) in enumerate(rows):
        lines += _bar(name, figure, TOP + place * (BAR + GAP), WIDTH / most)
    lines += [
        f'<text x="16" y="{height - 12}" font-size="11" fill="{GREY}">{_footnote(report)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(name: str, figure: dict[str, float], y: float, scale: float) -> list[str]:
    middle, end = y + BAR / 2, LEFT + figure["median"] * scale
    low, high = LEFT + figure["low"] * scale, LEFT + figure["high"] * scale
    colour = OURS if name.startswith("forerun") else THEIRS
    return [
        f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="{INK}"/>',
        f'<text x="{max(end, high) + 8:.1f}" y="{middle + 4}">{_figure(figure["median"])}</text>',
    ]


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _footnote(report: dict[str, object]) -> str:
    medians = f"medians of {report.get('rounds', '?')} rounds, 95 % intervals"
    return escape(
        f"{report['machine']}, {report['cores']} cores, {report['date']}, commit "
        f"{report['commit']}; {report.get('figures', medians)}"
    )


def draw_curves(report: dict[str, object], which: str) -> str:
    """The SVG of lines over 1, 2, ..., from 0 to the largest value of all."""
    curves = report["curves"]
    assert isinstance(curves, dict), "a report has curves by name"
    picture = curves[which]
    lines = {name: values for name, values in picture["lines"].items() if values}
    longest = max((len(values) for values in lines.values()), default=1)
    most = max((max(values) for values in lines.values()), default=0.0) or 1.0
    below = TOP + HIGH
    height = below + 44 + LEGEND * len(lines) + 26
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIDE + 2 * WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="24" font-weight="600">{escape(picture["title"])}</text>',
        _note(picture["y"], TOP - 4),
        _note(f"{picture['x']} 1 to {longest}", below + 32),
    ]
    for share in (0.0, 0.5, 1.0):
        y = below - share * HIGH
        drawn += [
            f'<line x1="{SIDE}" x2="{SIDE + 1.8 * WIDTH}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{THEIRS}"/>',
            f'<text x="{SIDE - 8}" y="{y + 4:.1f}" text-anchor="end">{share * most:.2g}</text>',
        ]
    for place, (name, values) in enumerate(lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        drawn += _curve(values, 1.8 * WIDTH / max(longest - 1, 1), HIGH / most, colour)
        y = below + 44 + LEGEND * place
        drawn += [
            f'<rect x="{SIDE}" y="{y}" width="12" height="12" fill="{colour}"/>',
            f'<text x="{SIDE + 20}" y="{y + 11}">{escape(name)}</text>',
        ]
    footnote = _footnote({"figures": "one line a set and drafter", **report})
    drawn += [
        f'<text x="16" y="{height - 10}" font-size="11" fill="{GREY}">{footnote}</text>',
        "</svg>",
    ]
    return "\n".join(drawn) + "\n"


def _note(text: str, y: float) -> str:
    return f'<text x="{SIDE}" y="{y}" font-size="11" fill="{GREY}">{escape(text)}</text>'


def _curve(values: list[float], step: float, scale: float, colour: str) -> list[str]:
    """A line, and a dot at each of its values."""
    points = [(SIDE + i * step, TOP + HIGH - value * scale) for i, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}"/>', *dots]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    read = json.loads(sys.stdin.read().splitlines()[-1])
    target.write_text(draw_curves(read, sys.argv[2]) if len(sys.argv) > 2 else draw(read))
