"""Draw a benchmark's last line of JSON as bars with their intervals, as an SVG.

    python benchmarks/peers.py ... | tail -1 | python benchmarks/plot.py docs/benchmarks/peers.svg

Only the results that share the unit of the first one are drawn ("name, unit").
"""

import json
import sys
from html import escape
from pathlib import Path

LEFT, BAR, GAP, WIDTH, TOP = 310, 22, 12, 420, 44
OURS, THEIRS, INK = "#2563eb", "#9ca3af", "#111827"


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
        f'<text x="16" y="{height - 12}" font-size="11" fill="#6b7280">{_footnote(report)}</text>',
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


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(json.loads(sys.stdin.read().splitlines()[-1])))
