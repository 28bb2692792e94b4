"""How fast is a hybrid of recurrent and attention layers on a CPU, beside transformers?

    python benchmarks/hybrid.py --question decode|prefill|widths|rollback [--folder KEPT] \\
        [--rounds 7] [--threads 2] [--markdown] [--layers 24 --hidden 1024 --vocabulary 151936]

- *decode*: greedy tokens behind 59 and 1,024 tokens, prefill taken out; and what they have to read
  by what the memory could stream in the same round.
- *prefill*: prompts of 512 and 2,048 tokens.
- *widths*: a verification round of several columns whose drafts all stand beside one column.
- *rollback*: two rounds of four drafts, the first of which keeps so many of them, beside two that
  keep all, and beside two of which the first is a plain forward that nothing can be taken out of:
  so captures, the way back and what the next round makes up for are all counted.

Random weights are made on the spot, in the proportions of Qwen3.5-0.8B, in a temporary folder or
in --folder. Contenders, each in a process of its own: forerun on its int4 and its bfloat16 import
of them, and transformers in bfloat16.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

from benchmarks.contenders import Ours, Run, Work, apart, forerun_contender, reading_contender
from benchmarks.hybrid_checkpoint import WEIGHTS, Shape, write_hybrid
from benchmarks.hybrid_contenders import (
    Rounds,
    RoundTimes,
    bytes_a_token,
    hybrid_peer,
    round_contender,
)
from benchmarks.hybrid_tables import (
    ALL,
    BF16,
    INT4,
    ONE_WAY,
    OURS,
    PEER,
    READING,
    markdown,
)
from benchmarks.importing import imported
from benchmarks.protocol import Contender, Interval, Quiet, interleave, interval, ratio, report
from forerun.store.stored import StoredModel

STORED = {INT4: "hybrid:int4", BF16: "hybrid:bf16", PEER: "hybrid:bf16"}  # whose bytes are read
QUANTIZE = {"hybrid:int4": "int4", "hybrid:bf16": ""}
CONTEXTS = (59, 1024)  # tokens before the first decoded one
PROMPTS = (512, 2048)
WIDTHS = (1, 2, 4, 8)
BEHIND = 256  # tokens of context of a round
DRAFTS = 4  # of a round that is rolled back
CHAIN = 3  # rounds on end, all of which but the first have a round to make up for
QUESTIONS = {
    "decode": "Decode speed of a hybrid",
    "prefill": "Prefill speed of a hybrid",
    "widths": "A verification round of a hybrid by its columns",
    "rollback": "What refused drafts cost a hybrid",
}
ROUNDS = {"decode": 7, "prefill": 5, "widths": 15, "rollback": 15}
PATIENCE_S = 300.0  # with runs that something else disturbed

Results = dict[str, Interval]
Verify = Callable[[Rounds], RoundTimes]


@dataclass(frozen=True, slots=True)
class Given:
    """What is measured, on what."""

    checkpoint: Path
    models: Mapping[str, StoredModel]  # by name
    rounds: int
    threads: int
    new_tokens: int


def prepared(folder: Path, shape: Shape) -> tuple[Path, dict[str, StoredModel]]:
    """The checkpoint and its imports; what a kept folder has of them stays."""
    base = folder / f"{shape.layers}-{shape.hidden}-{shape.vocabulary}"
    checkpoint, models = base / "checkpoint", base / "models"
    if not (checkpoint / WEIGHTS).exists():
        write_hybrid(checkpoint, shape)
    os.environ["FORERUN_MODELS"] = str(models)  # for the processes that load them
    return checkpoint, {
        name: imported(models, name, checkpoint, quantize=kind) for name, kind in QUANTIZE.items()
    }


def beside(given: Given, works: Mapping[str, Work], quiet: Quiet) -> Results:
    """Tokens a second of everybody at each of `works`, and ours by theirs, round by round."""
    results: Results = {}
    with ExitStack() as stack:
        runs: dict[str, Run] = {
            who: apart(stack, forerun_contender, Ours(STORED[who], given.threads)) for who in OURS
        }
        runs[PEER] = apart(stack, hybrid_peer, given.checkpoint, given.threads)
        runs[READING] = apart(stack, reading_contender, given.threads)
        for place, work in works.items():
            rows = [Contender(who, partial(run, work)) for who, run in runs.items()]
            figures = interleave(rows, given.rounds, quiet=quiet)
            streams = figures.pop(READING)
            results |= {f"{who}, {place}, tokens/s": interval(v) for who, v in figures.items()}
            results |= compared(figures, place)
            if work.kind == "decode":
                results |= bound(given, work, place, figures, streams)
    return results


def compared(figures: Mapping[str, Sequence[float]], place: str) -> Results:
    """Each of ours by everybody that is named after it."""
    names = list(figures)
    return {
        f"{ours} / {other}, {place}": ratio(figures[ours], figures[other])
        for ours in OURS
        for other in names[names.index(ours) + 1 :]
    }


def bound(
    given: Given,
    work: Work,
    place: str,
    figures: Mapping[str, Sequence[float]],
    streams: Sequence[float],
) -> Results:
    """What each one's tokens have to move a second, and its share of what the memory streams."""
    results = {f"{READING}, {place}, GB/s": interval(streams)}
    for who, speeds in figures.items():
        moved = bytes_a_token(given.models[STORED[who]], work)
        streamed = [speed * moved / 1e9 for speed in speeds]
        results[f"{who}, {place}, GB/s"] = interval(streamed)
        results[f"{who} / {READING}, {place}"] = ratio(streamed, streams)
    return results


def widths(given: Given, quiet: Quiet) -> Results:
    """Milliseconds a round by its columns, and each by that of one column."""
    results: Results = {}
    for who in OURS:
        with ExitStack() as stack:
            run = apart(stack, round_contender, Ours(STORED[who], given.threads))
            rows = [Contender(f"width {n}", partial(wide, run, n)) for n in WIDTHS]
            figures = interleave(rows, given.rounds, quiet=quiet)
        single = figures["width 1"]
        for width, seconds in figures.items():
            results[f"{who}, {width}, ms"] = interval([1e3 * each for each in seconds])
            results[f"{who}, {width} / width 1"] = ratio(seconds, single)
    return results


def wide(run: Verify, width: int) -> float:
    """Seconds of a round of so many columns, behind one that is to be made up for."""
    times = run(Rounds(BEHIND, width - 1, (width - 1,) * CHAIN)).rounds[1:]
    return sum(times) / len(times)


def rollback(given: Given, quiet: Quiet) -> Results:
    """Shares of a round, and milliseconds of `begin` and `commit` alone."""
    chains: dict[str, int | None] = {f"kept {n}": n for n in range(DRAFTS)}
    chains |= {ALL: DRAFTS, ONE_WAY: None}
    results: Results = {}
    for who in OURS:
        taken: dict[str, list[RoundTimes]] = {name: [] for name in chains}
        with ExitStack() as stack:
            run = apart(stack, round_contender, Ours(STORED[who], given.threads))
            rows = [
                Contender(name, partial(paired, run, kept, taken[name]))
                for name, kept in chains.items()
            ]
            figures = interleave(rows, given.rounds, warm_up=0, quiet=quiet)
        results |= shares(who, figures)
        results |= {
            f"{who}, {name}, begin and commit, ms": interval([1e3 * t.rollback[0] for t in times])
            for name, times in taken.items()
            if name != ONE_WAY
        }
    return results


def paired(run: Verify, kept: int | None, taken: list[RoundTimes]) -> float:
    """Seconds of a round that keeps so many drafts and one behind it that keeps all."""
    taken.append(run(Rounds(BEHIND, DRAFTS, (kept, DRAFTS))))
    return taken[-1].total


def shares(who: str, pairs: Mapping[str, Sequence[float]]) -> Results:
    """What each first round costs beside one that keeps all and beside one without a way back."""
    results = {f"{who}, {ALL}, ms": interval([1e3 * pair / 2 for pair in pairs[ALL]])}
    for name, seconds in pairs.items():
        for other in (ALL, ONE_WAY):
            if name in (other, ONE_WAY):
                continue
            extra = [
                100 * (pair - beside) / (whole / 2)
                for pair, beside, whole in zip(seconds, pairs[other], pairs[ALL], strict=True)
            ]
            results[f"{who}, {name} beside {other}, % of a round"] = interval(extra)
    return results


def measured(question: str, given: Given, quiet: Quiet) -> Results:
    if question == "widths":
        return widths(given, quiet)
    if question == "rollback":
        return rollback(given, quiet)
    if question == "prefill":
        return beside(given, {f"{n:,} tokens": Work("prefill", 0, n) for n in PROMPTS}, quiet)
    works = {f"behind {n:,}": Work("decode", n, given.new_tokens) for n in CONTEXTS}
    return beside(given, works, quiet)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--question", choices=list(QUESTIONS), default="decode")
    parser.add_argument("--folder", type=Path, help="keeps checkpoint and imports (3.5 GB)")
    parser.add_argument("--rounds", type=int, help=f"by default {ROUNDS}")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--patience", type=float, default=PATIENCE_S)
    parser.add_argument("--markdown", action="store_true", help="print tables for docs/benchmarks")
    whole = Shape()
    parser.add_argument("--layers", type=int, default=whole.layers)
    parser.add_argument("--hidden", type=int, default=whole.hidden)
    parser.add_argument("--vocabulary", type=int, default=whole.vocabulary)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    shape, quiet = Shape(asked.layers, asked.hidden, asked.vocabulary), Quiet(asked.patience)
    rounds = asked.rounds or ROUNDS[asked.question]
    with TemporaryDirectory() as temporary:
        checkpoint, models = prepared(asked.folder or Path(temporary), shape)
        given = Given(checkpoint, models, rounds, asked.threads, asked.new_tokens)
        results = measured(asked.question, given, quiet)
    if asked.markdown:
        print(markdown(results))
    report(
        QUESTIONS[asked.question],
        results,
        shape=[shape.layers, shape.hidden, shape.vocabulary],
        rounds=rounds,
        threads=asked.threads,
        repeated=quiet.repeated,
        disturbed=quiet.disturbed,
    )


if __name__ == "__main__":
    main()
