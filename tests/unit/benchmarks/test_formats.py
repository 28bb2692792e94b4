"""What the benchmark of formats makes of a model, and what its table says."""

import math
from pathlib import Path

import pytest
import torch

from benchmarks.distributions import Quality, Reading, compare, exact_reader, write_exact
from benchmarks.distributions import found as model
from benchmarks.formats import (
    ALONE,
    FORMATS,
    QUESTION,
    SERVED,
    SOURCE,
    Size,
    made,
    markdown,
    results,
    served_reader,
)
from benchmarks.importing import imported, write_source
from benchmarks.plot import draw
from benchmarks.quality import texts
from fixtures.tiny import tiny_folder, tiny_store

FINE, COARSE = "int8", "mxfp4"


def test_a_size_is_by_the_numbers_that_are_held() -> None:
    numbers = {"model.embed_tokens.weight": 100, "model.layers.0.mlp.up_proj.weight": 300}
    held = {"model.embed_tokens.weight": 200, "model.layers.0.mlp.up_proj.weight": 150}
    assert Size.of(held, numbers) == Size(350, 7.0, 4.0)


def test_the_table_has_a_line_a_format_beside_the_source() -> None:
    sizes = {SOURCE: Size(8_000_000, 16.0, 16.0), FINE: Size(4_000_000, 8.0, 4.5)}
    rows = {
        SOURCE: {ALONE: [Quality(0.0, 1.0, 8.0)], SERVED: [Quality(0.001, 0.97, 8.08)]},
        FINE: {ALONE: [Quality(0.01, 0.9, 8.8)], SERVED: [Quality(0.02, 0.89, 7.2)]},
    }
    lines = markdown(sizes, rows).splitlines()
    assert {line.count("|") for line in lines} == {13}
    assert lines[2] == (
        "| bf16 | 8.0 | 16.00 | 16.00 | 8.000 | +0.00 % | 0.00000 | 100.0% "
        "| 8.080 | +1.00 % | 0.00100 | 97.0% |"
    )
    assert "| 4.50 | 8.800 | +10.00 % | 0.01000 | 90.0% | 7.200 | -10.00 % |" in lines[3]
    bars = results(sizes, rows)
    drawn = [name for name in bars if name.endswith(", mean KL")]
    assert drawn == [f"{FINE}, mean KL", "bf16 as served, mean KL", f"{FINE} as served, mean KL"]
    assert bars[f"{FINE}, % of perplexity"].median == pytest.approx(10)
    assert next(iter(bars)) == drawn[0]
    assert ", " not in QUESTION  # what stands behind the last one is the unit of a picture


def test_bars_reach_from_the_lowest_text_to_the_highest() -> None:
    sizes = {name: Size(1, 1.0, 1.0) for name in (SOURCE, FINE)}
    plain = [Quality(0.0, 1.0, 10.0), Quality(0.0, 1.0, 40.0)]
    dearer = [Quality(0.1, 0.9, 11.0), Quality(0.3, 0.7, 40.0)]
    rows = {
        name: dict.fromkeys((ALONE, SERVED), of)
        for name, of in {SOURCE: plain, FINE: dearer}.items()
    }
    bars = results(sizes, rows)
    found = bars[f"{FINE}, mean KL"]
    assert (found.low, found.median, found.high) == (0.1, pytest.approx(0.2), 0.3)
    of = bars[f"{FINE}, % of perplexity"]
    middle = 100 * (math.sqrt(440 / 400) - 1)
    assert (of.low, of.median, of.high) == (0.0, pytest.approx(middle), pytest.approx(10))


def test_every_format_is_made_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights alone, and as it is served; more bits are nearer to the source."""
    tiny_store(tmp_path / "store", "llama", name="tiny", intermediate_size=128, head_dim=32)
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path / "store"))
    threads = torch.get_num_threads()
    try:
        sizes = made("tiny", tmp_path)
        assert model(SOURCE).json("config.json")["dtype"] == "bfloat16"  # and not what it was
        text = texts(SOURCE, 40)[0]
        exact = tmp_path / "exact.npy"
        source = Quality.of(write_exact(Reading(SOURCE, text, exact)))
        found = {
            (name, way): Quality.of(compare(make, Reading(name, text, exact)))
            for name in FORMATS
            for way, make in ((ALONE, exact_reader), (SERVED, served_reader))
        }
    finally:
        torch.set_num_threads(threads)
    assert list(sizes) == [SOURCE, *FORMATS]
    assert source.divergence == 0.0
    for name in FORMATS:
        assert sizes[name].layer_bits < sizes[SOURCE].layer_bits
        assert 0 < found[name, ALONE].divergence < 1
        assert found[name, SERVED].divergence == pytest.approx(
            found[name, ALONE].divergence, rel=0.5, abs=0.01
        )
    assert found[FINE, ALONE].divergence < found[COARSE, ALONE].divergence / 4


def test_a_models_draft_is_no_part_of_a_source(tmp_path: Path) -> None:
    """The catalogue's own model has a head."""
    tiny_folder(tmp_path / "tiny", "llama")
    tiny_folder(tmp_path / "tiny" / "head", "llama", num_hidden_layers=1)
    models, text = tmp_path / "store", f"FROM .\nDRAFT {tmp_path / 'tiny' / 'head'}"
    plain = imported(models, "plain", tmp_path / "tiny")
    drafting = imported(models, "drafting", tmp_path / "tiny", modelfile=text)
    assert len(drafting.tensors) > len(plain.tensors)
    numbers = [write_source(each, tmp_path / str(each.name)) for each in (plain, drafting)]
    assert numbers[0] == numbers[1]


def test_the_picture_is_drawn_from_the_report() -> None:
    sizes = {name: Size(1, 1.0, 1.0) for name in (SOURCE, FINE)}
    rows = {name: {way: [Quality(0.25, 0.5, 2.0)] for way in (ALONE, SERVED)} for name in sizes}
    bars = {
        name: {"median": one.median, "low": one.low, "high": one.high}
        for name, one in results(sizes, rows).items()
    }
    of = {"machine": "M", "cores": 2, "date": "today", "commit": "abc", "figures": "means"}
    picture = draw({"question": QUESTION, "results": bars, **of})
    assert f">{FINE} as served<" in picture
    assert picture.count(">0.25<") == 3
