"""How fast is forerun beside its peers, on the same weights, prompt and threads?

    python benchmarks/peers.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --question decode \\
        [--llama-bench PATH] [--q4-0 OTHER.gguf] [--rounds 7] [--new-tokens 128]

- *decode*: greedy tokens behind 59 and 1,024 tokens of context, prefill taken out; and how much of
  what the memory could stream in the same round that is.
- *prefill*: prompts of 512 and 2,048 tokens.
- *widths*: a forward of several tokens with logits for each beside one of a single token.

Contenders, each in a process of its own: forerun on its int4 import of the file, with its own
kernels and with PyTorch's; transformers in bf16 on the dequantised weights; llama.cpp on the file
itself and, with --q4-0, on its best quantisation.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

from benchmarks.contenders import (
    Ours,
    Run,
    Work,
    apart,
    bytes_read,
    forerun_contender,
    llama_contender,
    reading_contender,
    transformers_contender,
    verifying_contender,
)
from benchmarks.protocol import Contender, Interval, Quiet, interleave, interval, ratio, report

OURS = "forerun"
READING = "plain read loop"
CONTEXTS = (59, 1024)  # tokens before the first decoded one
PROMPTS = (512, 2048)
WIDTHS = (1, 2, 4, 8, 16)
BEHIND = 256  # tokens of context of the forwards of several
QUESTIONS = {
    "decode": "Decode speed beside the peers",
    "prefill": "Prefill speed beside the peers",
    "widths": "A forward of several tokens beside one of a single token",
}
PATIENCE_S = 240.0  # with runs that something else disturbed
ROUNDS = {"decode": 7, "prefill": 5, "widths": 15}

Figures = Mapping[str, Sequence[float]]


def contenders(stack: ExitStack, given: argparse.Namespace) -> dict[str, Run]:
    """Who runs, by name."""
    threads = given.threads
    ours = Ours(given.model, threads)
    found = {
        OURS: apart(stack, forerun_contender, ours),
        f"{OURS}, PyTorch's kernels": apart(
            stack, forerun_contender, Ours(given.model, threads, own_kernels=False)
        ),
        "transformers bf16": apart(stack, transformers_contender, given.model, threads),
    }
    if given.llama_bench:
        files = {"llama.cpp Q4_1 (same weights)": given.gguf, "llama.cpp Q4_0": given.q4_0}
        found |= {
            name: llama_contender(given.llama_bench, file, threads)
            for name, file in files.items()
            if file
        }
    return found


def beside(
    given: argparse.Namespace, works: Mapping[str, Work], quiet: Quiet
) -> dict[str, Interval]:
    """Tokens a second of everybody at each of `works`, and ours by theirs, pair by pair."""
    results: dict[str, Interval] = {}
    ratios: dict[str, Interval] = {}
    with ExitStack() as stack:
        found = contenders(stack, given)
        reading = apart(stack, reading_contender, given.threads)
        for place, work in works.items():
            rows = [Contender(name, partial(run, work)) for name, run in found.items()]
            rows.append(Contender(READING, partial(reading, work)))
            figures = interleave(rows, given.rounds, quiet=quiet)
            speeds = {name: values for name, values in figures.items() if name != READING}
            results |= {f"{who}, {place}, tokens/s": interval(v) for who, v in speeds.items()}
            ratios |= {
                f"{OURS} / {who}, {place}": ratio(figures[OURS], values)
                for who, values in speeds.items()
                if who != OURS
            }
            if work.kind == "decode":
                ratios |= bound(given, work, place, figures)
    return results | ratios


def bound(
    given: argparse.Namespace, work: Work, place: str, figures: Figures
) -> dict[str, Interval]:
    """The memory's speed, and the share of it that our decode reads with."""
    read = bytes_read(given.model, work)
    streamed = [speed * read / 1e9 for speed in figures[OURS]]
    return {
        f"{READING}, {place}, GB/s": interval(figures[READING]),
        f"{OURS}, {place}, GB/s of weights, keys and values": interval(streamed),
        f"{OURS} / {READING}, {place}": ratio(streamed, figures[READING]),
    }


def widths(given: argparse.Namespace, quiet: Quiet) -> dict[str, Interval]:
    """Milliseconds a forward by width, and each by that of a single token."""
    with ExitStack() as stack:
        run = apart(stack, verifying_contender, Ours(given.model, given.threads))
        rows = [
            Contender(f"{OURS}, width {width}", partial(run, Work("verify", BEHIND, width)))
            for width in WIDTHS
        ]
        figures = interleave(rows, given.rounds, quiet=quiet)
    single = figures[f"{OURS}, width 1"]
    results = {f"{name}, ms": interval([1e3 * s for s in v]) for name, v in figures.items()}
    return results | {f"{name} / width 1": ratio(v, single) for name, v in figures.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--question", choices=list(QUESTIONS), default="decode")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--q4-0", type=Path)
    parser.add_argument("--llama-bench")
    parser.add_argument("--rounds", type=int, help=f"by default {ROUNDS}")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    given.rounds = given.rounds or ROUNDS[given.question]
    return given


def main() -> None:
    given, quiet = arguments(), Quiet(PATIENCE_S)
    if given.question == "widths":
        results = widths(given, quiet)
    elif given.question == "prefill":
        results = beside(given, {f"{n:,} tokens": Work("prefill", 0, n) for n in PROMPTS}, quiet)
    else:
        places = {f"behind {n:,}": Work("decode", n, given.new_tokens) for n in CONTEXTS}
        results = beside(given, places, quiet)
    report(
        QUESTIONS[given.question],
        results,
        rounds=given.rounds,
        threads=given.threads,
        repeated=quiet.repeated,
        disturbed=quiet.disturbed,
    )


if __name__ == "__main__":
    main()
