"""The picture of a report holds its names and figures."""

from xml.etree import ElementTree

from benchmarks.plot import draw, draw_curves


def test_each_result_of_the_unit_is_a_bar() -> None:
    figure = {"median": 100.0, "low": 90.0, "high": 110.0}
    report = {
        "question": "How <fast>?",
        "results": {
            "forerun int4, tokens/s": figure,
            "other, tokens/s": {"median": 50.0, "low": 49.0, "high": 51.0},
            "forerun / other": {"median": 2.0, "low": 1.9, "high": 2.1},
        },
        "machine": "M",
        "cores": 2,
        "date": "today",
        "commit": "abc",
    }
    picture = ElementTree.fromstring(draw(report))
    texts = [node.text or "" for node in picture.iter() if node.tag.endswith("text")]
    assert {"forerun int4", "other", "100", "50"} <= set(texts)
    assert "How <fast>?, tokens/s" in texts
    bars = [node for node in picture.iter() if node.tag.endswith("rect") and node.get("x")]
    widths = [float(bar.get("width") or 0) for bar in bars]
    assert widths[0] == 2 * widths[1]
    assert "medians of ? rounds" in texts[-1]
    assert "; means over 3 texts" in draw({**report, "figures": "means over 3 texts"})


def test_curves_are_lines_to_one_scale() -> None:
    lines = {"a & b": [1.0, 2.0, 4.0], "c": [2.0], "nothing": []}
    curves = {"speedup": {"title": "T", "x": "prompt", "y": "times", "lines": lines}}
    report = {"curves": curves, "machine": "M", "cores": 2, "date": "today", "commit": "abc"}
    picture = ElementTree.fromstring(draw_curves(report, "speedup"))
    texts = [node.text or "" for node in picture.iter() if node.tag.endswith("text")]
    assert {"T", "times", "prompt 1 to 3", "a & b", "c", "4"} <= set(texts)
    assert "nothing" not in texts
    dots = [node for node in picture.iter() if node.tag.endswith("circle")]
    heights = [float(dot.get("cy") or 0) for dot in dots]
    assert heights[0] - heights[1] == (heights[1] - heights[2]) / 2
    assert heights[3] == heights[1]
    assert [dot.get("cx") for dot in dots][3] == dots[0].get("cx")


def test_curves_of_zeros_are_a_line_at_the_bottom() -> None:
    of = {"title": "T", "x": "x", "y": "y"}
    report = {"machine": "M", "cores": 2, "date": "today", "commit": "abc"}
    for lines, dots in (({"a": [0.0, 0.0]}, 2), ({}, 0)):
        curves = {"depth": {**of, "lines": lines}}
        assert draw_curves({**report, "curves": curves}, "depth").count("<circle") == dots
