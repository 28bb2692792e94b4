"""How far are forerun's distributions from those that the stored weights mean?

    python benchmarks/quality.py [--model smollm2:135m] [--tokens 2000] [--processes 2] \\
        [--gguf SmolLM2-135M-Instruct.Q4_1.gguf --llama-perplexity PATH]

Over the first tokens of three texts that every machine with the project has: mean KL divergence
from the exact distributions (in nats), the share of positions with the same likeliest token, and
perplexity. Exact is float32 throughout on the dequantised weights.

Contenders: forerun as it serves, with its own kernels and with PyTorch's; transformers in bf16 on
the dequantised weights; llama.cpp on a file with the same weights, by its own measure, which sees
only the second half of each text. No timings are taken, so other work beside this changes nothing.
"""

import argparse
import inspect
import math
import pydoc_data.topics
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.distributions import (
    Quality,
    Reading,
    Scores,
    Text,
    compare,
    found,
    native_reader,
    torch_reader,
    transformers_reader,
    write_exact,
)
from benchmarks.llama_perplexity import llama_quality, scored
from benchmarks.protocol import Interval, report

QUESTION = "Divergence from float32 on the same weights"
EXACT = "float32"
OURS = "forerun"
LLAMA = "llama.cpp on the file"
READERS = {
    OURS: native_reader,
    f"{OURS}, PyTorch's kernels": torch_reader,
    "transformers bf16": transformers_reader,
}
ALL = "all"

AllScores = dict[str, list[Scores]]  # by contender, text by text
Rows = Mapping[str, Sequence[Quality]]  # the same


def texts(model: str, positions: int) -> tuple[Text, ...]:
    """Python, reference prose about it, and the project's decision records, in that model's ids."""
    stored = found(model)
    layer = stored.json_layer("tokenizer.json")
    assert layer is not None, f"{model} has no tokenizer.json"
    tokenizer = Tokenizer.from_buffer(stored.read(layer))
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    sources = {
        "argparse": inspect.getsource(argparse),
        "types": pydoc_data.topics.topics["types"],
        "decisions": "\n".join(path.read_text(encoding="utf-8") for path in records),
    }
    found_texts = []
    for name, source in sources.items():
        ids = tokenizer.encode(source, add_special_tokens=False).ids[: positions + 1]
        assert len(ids) == positions + 1, f"{name} has only {len(ids)} tokens"
        found_texts.append(Text(name, tuple(ids)))
    return tuple(found_texts)


def measured(readings: Sequence[Reading], contenders: Sequence[str], processes: int) -> AllScores:
    """Scores of the exact distributions and of `contenders`, text by text.

    Each contender reads each text in a process of its own, so many of them at a time.
    """
    with ProcessPoolExecutor(processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        exact = list(pool.map(write_exact, readings))
        theirs = {
            name: [pool.submit(compare, READERS[name], reading) for reading in readings]
            for name in contenders
        }
        scores = {name: [one.result() for one in ones] for name, ones in theirs.items()}
    return {EXACT: exact} | scores


def qualities(scores: AllScores, positions: range) -> dict[str, list[Quality]]:
    """Of those positions of each text."""
    return {
        who: [Quality.of(text.between(positions.start, positions.stop)) for text in ones]
        for who, ones in scores.items()
    }


def whole(texts: Sequence[Quality]) -> Quality:
    """Texts of one length as one."""
    return Quality(
        statistics.fmean(text.divergence for text in texts),
        statistics.fmean(text.same_top for text in texts),
        math.exp(statistics.fmean(math.log(text.perplexity) for text in texts)),
    )


def table(names: Sequence[str], rows: Rows) -> str:
    """A Markdown table: contenders by texts, each cell KL, equal top and perplexity."""
    lines = [f"| | {' | '.join([*names, ALL])} |", "|---" * (len(names) + 2) + "|"]
    for who, figures in rows.items():
        cells = [
            f"{f.divergence:.5f}, {f.same_top:.1%}, {f.perplexity:.3f}"
            for f in (*figures, whole(figures))
        ]
        lines.append(f"| {who} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bars(rows: Rows, place: str) -> dict[str, Interval]:
    """Means over the texts, with the lowest and the highest of them."""
    measures = {
        f"mean KL {place}": lambda text: text.divergence,
        f"same top {place}": lambda text: text.same_top,
        f"perplexity {place}": lambda text: text.perplexity,
    }
    return {
        f"{who}, {name}": Interval(of(whole(row)), min(map(of, row)), max(map(of, row)))
        for name, of in measures.items()
        for who, row in rows.items()
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--tokens", type=int, default=2000, help="of each text")
    parser.add_argument("--processes", type=int, default=2, help="of one thread, at a time")
    parser.add_argument("--gguf", type=Path, help="with the same weights, for llama.cpp")
    parser.add_argument("--llama-perplexity", help="the program of that name")
    given = parser.parse_args()
    if (given.gguf is None) != (given.llama_perplexity is None):
        parser.error("--gguf and --llama-perplexity are given together or not at all")
    return given


def main() -> None:
    given = arguments()
    half = scored(given.tokens)
    with TemporaryDirectory() as folder:
        read = texts(given.model, given.tokens)
        readings = [Reading(given.model, text, Path(folder) / f"{text.name}.npy") for text in read]
        scores = measured(readings, list(READERS), given.processes)
        late = qualities(scores, half)
        if given.llama_perplexity:
            llama = partial(llama_quality, given.llama_perplexity, given.gguf)
            with ThreadPoolExecutor(given.processes) as pool:
                late[LLAMA] = list(pool.map(llama, readings))
    names, rows = [text.name for text in read], qualities(scores, range(given.tokens))
    print("mean KL in nats, share of equal top tokens, perplexity\n")
    print(f"All {given.tokens:,} positions\n\n{table(names, rows)}\n")
    print(f"Positions {half.start:,} to {half.stop - 1:,}\n\n{table(names, late)}")
    figures = f"means over {len(names)} texts, lines from the lowest to the highest"
    results = bars(late, "in the second half") | bars(rows, "overall")
    report(QUESTION, results, model=given.model, tokens=given.tokens, figures=figures)


if __name__ == "__main__":
    main()
