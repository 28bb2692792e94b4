"""What does each format that an import can quantise to cost?

    python benchmarks/formats.py [--model smollm2:135m] [--tokens 5000] [--processes 2] [--markdown]

Over three texts that every machine with the project has, of so many tokens together: perplexity,
its change, mean KL divergence in nats and the share of positions with the same likeliest token,
beside the source; and what the tensors take on disk. Each import is read twice: its weights in
float32 throughout, which is what the format costs, and as a runner serves it on a CPU.

The source is the stored model's weights as bfloat16, in a folder, dequantised where the store has
them quantised; each format is made of it as `forerun create --quantize` does, policy included. No
timings are taken, so other work beside this changes nothing.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

from benchmarks.distributions import (
    Quality,
    Reader,
    Reading,
    Text,
    compare,
    exact_reader,
    found,
    reader_of,
    served,
    write_exact,
)
from benchmarks.importing import imported, weight_bytes, write_source
from benchmarks.protocol import Interval, report
from benchmarks.quality import texts, whole
from forerun.base.quantisation import BITS

QUESTION = "What formats cost"
SOURCE = "bf16"
FORMATS = tuple(BITS)
ALONE, SERVED = "weights", "served"
TEXTS = 3
MB = 1e6

Qualities = dict[str, list[Quality]]  # by way of reading, text by text


@dataclass(frozen=True, slots=True)
class Size:
    """What a model's tensors take on disk, with scales and headers, by the numbers they hold."""

    bytes: int
    bits: float  # a weight
    layer_bits: float  # a weight of the layers: tables stay as they are (07 POL-1)

    @classmethod
    def of(cls, held: Mapping[str, int], numbers: Mapping[str, int]) -> "Size":
        """held: bytes by name; numbers: how many each stands for."""
        layers = [name for name in numbers if ".layers." in name]
        return cls(
            sum(held.values()),
            8 * sum(held.values()) / sum(numbers.values()),
            8 * sum(held[name] for name in layers) / sum(numbers[name] for name in layers),
        )


def made(model: str, folder: Path) -> dict[str, Size]:
    """Every format's import, in the store of this environment from now on."""
    source, models = folder / "source", folder / "models"
    numbers = write_source(found(model), source)
    os.environ["FORERUN_MODELS"] = str(models)
    sizes = {}
    for name in (SOURCE, *FORMATS):
        stored = imported(models, name, source, quantize="" if name == SOURCE else name)
        sizes[name] = Size.of(weight_bytes(stored), numbers)
    return sizes


def measured(read: Sequence[Text], folder: Path, processes: int) -> dict[str, Qualities]:
    """Of each import both ways, beside the source's weights in float32; by name of the import.

    One text is read by one contender in a process of its own, so many of them at a time.
    """
    exact = [Reading(SOURCE, text, folder / f"{text.name}.npy") for text in read]
    with ProcessPoolExecutor(processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        alone = {SOURCE: list(pool.map(write_exact, exact))}
        asked = {
            (name, way): [
                pool.submit(compare, make, Reading(name, one.text, one.exact)) for one in exact
            ]
            for name in (SOURCE, *FORMATS)
            for way, make in ((ALONE, exact_reader), (SERVED, served_reader))
            if (name, way) != (SOURCE, ALONE)
        }
        scores = {key: [one.result() for one in ones] for key, ones in asked.items()}
    scores[SOURCE, ALONE] = alone[SOURCE]
    return {
        name: {way: [Quality.of(text) for text in scores[name, way]] for way in (ALONE, SERVED)}
        for name in (SOURCE, *FORMATS)
    }


def served_reader(reading: Reading) -> Reader:
    """As a runner serves it on a CPU, with the kernels that there are for its format."""
    return reader_of(served(reading))


def markdown(sizes: Mapping[str, Size], rows: Mapping[str, Qualities]) -> str:
    """A line a format."""
    of_way = "perplexity | change | mean KL | same likeliest"
    lines = [
        f"| | MB | bits a weight | in the layers | {of_way} | served: {of_way} |",
        "|---" * 12 + "|",
    ]
    plain = whole(rows[SOURCE][ALONE]).perplexity
    for name, size in sizes.items():
        cells = [name, f"{size.bytes / MB:.1f}", f"{size.bits:.2f}", f"{size.layer_bits:.2f}"]
        for way in (ALONE, SERVED):
            figure = whole(rows[name][way])
            cells += [f"{figure.perplexity:.3f}", f"{change(figure.perplexity, plain):+.2f} %"]
            cells += [f"{figure.divergence:.5f}", f"{figure.same_top:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def change(perplexity: float, of: float) -> float:
    """Percent."""
    return 100 * (perplexity / of - 1)


def results(sizes: Mapping[str, Size], rows: Mapping[str, Qualities]) -> dict[str, Interval]:
    """Means over the texts, with the lowest and the highest of them. The first unit is drawn."""
    plain = rows[SOURCE][ALONE]
    bars: dict[str, Interval] = {}
    changes: dict[str, Interval] = {}
    for way in (ALONE, SERVED):
        for name, ways in rows.items():
            if ways[way] is plain:
                continue
            label = name if way == ALONE else f"{name} as served"
            bars[f"{label}, mean KL"] = over([text.divergence for text in ways[way]])
            of = whole(plain).perplexity
            each = [
                change(text.perplexity, one.perplexity)
                for text, one in zip(ways[way], plain, strict=True)
            ]
            middle = change(whole(ways[way]).perplexity, of)
            changes[f"{label}, % of perplexity"] = Interval(middle, min(each), max(each))
    bits = {f"{name}, bits a weight": over([size.bits]) for name, size in sizes.items()}
    return bars | changes | bits


def over(values: Sequence[float]) -> Interval:
    return Interval(statistics.fmean(values), min(values), max(values))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--tokens", type=int, default=5000, help="of all texts together")
    parser.add_argument("--processes", type=int, default=2, help="of one thread, at a time")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    positions = -(-given.tokens // TEXTS)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sizes = made(given.model, folder)
        rows = measured(texts(SOURCE, positions), folder, given.processes)
    if given.markdown:
        print(markdown(sizes, rows))
    report(
        QUESTION,
        results(sizes, rows),
        model=given.model,
        tokens=TEXTS * positions,
        perplexity={name: whole(ways[ALONE]).perplexity for name, ways in rows.items()},
        megabytes={name: size.bytes / MB for name, size in sizes.items()},
        figures=f"means over {TEXTS} texts, lines from the lowest to the highest",
    )


if __name__ == "__main__":
    main()
