"""What the benchmark of the hybrid makes of figures, and its tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import contenders, hybrid, hybrid_contenders, importing
from benchmarks.contenders import Ours, Work, served
from benchmarks.hybrid import (
    QUESTIONS,
    STORED,
    Given,
    bound,
    compared,
    measured,
    prepared,
    shares,
    wide,
)
from benchmarks.hybrid_checkpoint import Shape
from benchmarks.hybrid_contenders import Rounds, RoundTimes, bytes_a_token
from benchmarks.hybrid_tables import BF16, EVERYBODY, INT4, PEER, READING, figure, markdown
from benchmarks.protocol import Interval, Quiet
from forerun.runner.service import Service


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


def test_each_of_ours_is_compared_with_who_is_named_after_it() -> None:
    figures = {INT4: [8.0, 4.0], BF16: [2.0, 1.0], PEER: [1.0, 0.5]}
    found = compared(figures, "there")
    assert {name: one.median for name, one in found.items()} == {
        f"{INT4} / {BF16}, there": 4.0,
        f"{INT4} / {PEER}, there": 8.0,
        f"{BF16} / {PEER}, there": 2.0,
    }


def test_a_refusal_costs_what_its_pair_of_rounds_takes_more() -> None:
    """Of one round, and by what each pair beside it took."""
    pairs = {"kept 0": [2.2, 4.4], "all kept": [2.0, 4.0], "no way back": [1.9, 3.8]}
    found = {name: one.median for name, one in shares("ours", pairs).items()}
    assert found == {
        "ours, all kept, ms": 1500.0,
        "ours, kept 0 beside all kept, % of a round": pytest.approx(20),
        "ours, kept 0 beside no way back, % of a round": pytest.approx(30),
        "ours, all kept beside no way back, % of a round": pytest.approx(10),
    }


def test_a_wide_round_is_timed_behind_one_that_it_makes_up_for() -> None:
    asked: list[Rounds] = []

    def run(rounds: Rounds) -> RoundTimes:
        asked.append(rounds)
        return RoundTimes((9.0, 1.0, 2.0), (0.0,) * 3)

    assert wide(run, 4) == 1.5
    assert (asked[0].drafts, asked[0].kept) == (3, (3, 3, 3))


def test_a_speed_stands_beside_what_bounds_it() -> None:
    where = "behind 59"
    results = {f"{who}, {where}, tokens/s": exactly(120.0) for who in (INT4, BF16, PEER)}
    results |= {f"{INT4} / {PEER}, {where}": Interval(4.25, 4.0, 4.5)}
    speeds = "| forerun int4 | 120 (120 to 120) |  |  |"
    assert markdown(results).splitlines()[2] == speeds
    results |= {f"{READING}, {where}, GB/s": exactly(40.0), f"{INT4}, {where}, GB/s": exactly(20.0)}
    results |= {f"{INT4} / {READING}, {where}": exactly(0.5)}
    lines = markdown(results).splitlines()
    assert lines[2] == f"{speeds} 20 (20 to 20) | 0.5 (0.5 to 0.5) |"
    assert "| 4.25 (4 to 4.5) |" in lines[4]
    assert lines[5] == "| plain read loop |  |  |  | 40 (40 to 40) |  |"


def test_what_a_second_moves_is_that_of_its_tokens(given: Given) -> None:
    work = Work("decode", 9, 8)
    found = bound(given, work, "there", {INT4: [100.0, 100.0]}, [50.0, 50.0])
    moved = 100 * bytes_a_token(given.models[STORED[INT4]], work) / 1e9
    assert found[f"{INT4}, there, GB/s"].median == pytest.approx(moved)
    assert found[f"{INT4} / {READING}, there"].median == pytest.approx(moved / 50)


def test_every_place_has_a_table() -> None:
    results = {
        f"{INT4}, {place}, tokens/s": exactly(1.0) for place in ("512 tokens", "2,048 tokens")
    }
    assert [table.split(",")[0] for table in markdown(results).split("\n\n")] == [
        "|  | 512 tokens",
        "|  | 2",
    ]


def test_widths_are_columns() -> None:
    results = {f"{INT4}, width {n}, ms": exactly(10.0 * n) for n in (1, 2)}
    results |= {f"{INT4}, width {n} / width 1": exactly(float(n)) for n in (1, 2)}
    assert markdown(results).splitlines()[:4] == [
        "|  | width 1 | width 2 |",
        "|---|---|---|",
        "| forerun int4, ms | 10 (10 to 10) | 20 (20 to 20) |",
        "| forerun int4, in rounds of one | 1 (1 to 1) | 2 (2 to 2) |",
    ]


def test_refusals_are_rows() -> None:
    pairs = {"kept 0": [2.2], "all kept": [2.0], "no way back": [1.9]}
    results = shares(INT4, pairs) | shares(BF16, pairs)
    results |= {f"{INT4}, kept 0, begin and commit, ms": exactly(0.25)}
    lines = markdown(results).splitlines()
    cells = "20 (20 to 20) | 30 (30 to 30) |"
    assert lines[2] == f"| kept 0 | {cells} 0.25 (0.25 to 0.25) | {cells}  |"
    assert lines[3] == "| all kept |  | 10 (10 to 10) |  |  | 10 (10 to 10) |  |"
    assert lines[4].startswith("| a round that keeps all, ms | 1,000 (1,000 to 1,000) |")
    assert len(lines) == 5


def test_figures_have_three_digits() -> None:
    assert figure(Interval(1234.56, 0.12345, 12.345)) == "1,235 (0.123 to 12.3)"


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture
def given(prepared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Given]:
    """A tiny hybrid, small contexts, and contenders in this process."""
    services: list[Service] = []

    def kept(of: Ours) -> Service:
        services.append(served(of))
        return services[-1]

    monkeypatch.setenv("FORERUN_MODELS", "")  # which `prepared` changes
    monkeypatch.setattr(contenders, "served", kept)
    monkeypatch.setattr(contenders, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(hybrid, "apart", lambda _stack, make, *arguments: make(*arguments))
    monkeypatch.setattr(hybrid, "CONTEXTS", (9,))
    monkeypatch.setattr(hybrid, "PROMPTS", (40,))
    monkeypatch.setattr(hybrid, "BEHIND", 20)
    monkeypatch.setattr(hybrid, "WIDTHS", (1, 2))
    monkeypatch.setattr(hybrid_contenders, "REPEATS", 1)
    threads = torch.get_num_threads()
    checkpoint, models = prepared(prepared_folder, Shape(4, 64, 1200))
    yield Given(checkpoint, models, rounds=1, threads=1, new_tokens=8)
    for service in services:
        service.close()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_runs_through(given: Given, question: str) -> None:
    results = measured(question, given, Quiet(patience_s=0))
    tables = markdown(results).split("\n\n")
    assert len(tables) == 1
    wanted = {"decode": 6, "prefill": 5, "widths": 6, "rollback": 8}
    assert len(tables[0].splitlines()) == wanted[question]
    speeds = [one for name, one in results.items() if name.endswith((", tokens/s", ", ms"))]
    assert len(speeds) >= 3
    assert all(one.median > 0 for one in speeds)
    assert all(name.startswith((*EVERYBODY, READING)) for name in results)


def test_what_is_prepared_stays(
    given: Given, prepared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the int4 import is of int4."""
    monkeypatch.delattr(importing, "create")
    weights = given.checkpoint / "model.safetensors"
    written = weights.stat().st_mtime_ns
    again, models = prepared(prepared_folder, Shape(4, 64, 1200))
    assert (again, weights.stat().st_mtime_ns) == (given.checkpoint, written)
    assert {name: model.digest for name, model in models.items()} == {
        name: model.digest for name, model in given.models.items()
    }
    assert "int4" in models[STORED[INT4]].weights_summary()
    assert "int" not in models[STORED[BF16]].weights_summary()


def test_a_token_moves_weights_rows_and_states(given: Given) -> None:
    """All weights but those of the head beside the model; each state twice."""
    stored = given.models[STORED[BF16]]
    weights = sum(layer.blob.size for layer in stored.tensors if not layer.name.startswith("mtp."))
    assert weights < sum(layer.blob.size for layer in stored.tensors)
    state = 4 * 16 * 128 * 128 + 2 * 3 * (3 * 16 * 128)
    row = 2 * 2 * 2 * 256
    assert bytes_a_token(stored, Work("decode", 10, 20)) == weights + 20 * row + 2 * 3 * state
