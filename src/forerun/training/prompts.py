"""The packaged prompts: small parts written for this purpose, combined in every way they fit.

None of it is taken from a benchmark or a data set, so that those measure something. The selection
is the same every time.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forerun.training import programs, topics


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user says, and what they say after the answer, if anything."""

    text: str
    follow_up: str = ""


COUNT = 48_000

_FOLLOWED = 0.25  # of the prompts have a second turn
_TRIES = 60  # draws of a kind for each of its prompts before it counts as used up


def packaged(count: int = COUNT) -> list[Prompt]:
    """`count` different prompts in mixed order, the same ones every time."""
    chance = random.Random(20_261_130)
    total = sum(share for share, _, _ in _KINDS)
    found = [
        prompt
        for share, make, follow_ups in _KINDS
        for prompt in _distinct(make, follow_ups, -(-count * share // total), chance)
    ]
    chance.shuffle(found)
    assert len(found) >= count, (len(found), count)
    return found[:count]


def _distinct(
    make: Callable[[random.Random], str],
    follow_ups: tuple[str, ...],
    count: int,
    chance: random.Random,
) -> Iterator[Prompt]:
    seen: set[str] = set()
    for _ in range(_TRIES * count):
        text = make(chance)
        if text in seen:
            continue
        seen.add(text)
        followed = chance.random() < _FOLLOWED
        yield Prompt(text, chance.choice(follow_ups) if followed else "")
        if len(seen) == count:
            return
    raise AssertionError(f"only {len(seen)} of {count} prompts of a kind")


def _question(chance: random.Random) -> str:
    subject, other = chance.sample(topics.SUBJECTS, 2)
    return chance.choice(topics.QUESTIONS).format(s=subject, o=other)


def _plan(chance: random.Random) -> str:
    asked = chance.choice(topics.ASKED_PLANS).format(s=chance.choice(topics.PLANS))
    return f"{asked} {chance.choice(_MANNERS)}".strip()


_MANNERS = (
    *(
        "",
        "Be brief.",
        "Use a friendly tone.",
        "Answer in at most 100 words.",
        "Use bullet points.",
    ),
    *("Number the steps.", "I have little money.", "I have never done this before.", "Be precise."),
    *("Add a short explanation to each item.", "Start with the most important thing."),
)


def _letter(chance: random.Random) -> str:
    kind = chance.choice(("an email", "a short message", "a polite letter", "a casual note"))
    to, occasion = chance.choice(topics.PEOPLE), chance.choice(topics.OCCASIONS)
    return f"Write {kind} to {to}, {occasion}. {chance.choice(_MANNERS[:5])}".strip()


def _role(chance: random.Random) -> str:
    role, task = chance.choice(topics.ROLES), chance.choice(topics.TASKS_OF_ROLES)
    about = chance.choice(topics.SUBJECTS)
    return chance.choice(
        (
            f"You are {role}. {task}",
            f"Pretend to be {role}. {task} Mention {about}.",
            f"Answer as if you were {role}: what do you think about {about}?",
            f"Write a scene in which {role} meets somebody who only talks about {about}.",
            f"Imagine {role} had to explain {about}. Write down what they would say.",
        )
    )


def _passage(chance: random.Random) -> str:
    count = chance.choice((1, 1, 2))
    passage = "\n\n".join(chance.sample(topics.PASSAGES, count))
    asked = chance.choice(topics.OF_PASSAGES)
    return chance.choice((f"{asked}\n\n{passage}", f"{passage}\n\n{asked}", f'{asked} "{passage}"'))


def _task(chance: random.Random) -> str:
    language, task = chance.choice(programs.LANGUAGES), chance.choice(programs.TASKS)
    return chance.choice(programs.ASKED).format(l=language, t=task)


def _stub(chance: random.Random) -> str:
    plural, name, _, example = chance.choice(programs.PROPERTIES)
    function, returned, doc = chance.choice(programs.OPERATIONS)
    argument = chance.choice(("values", "items", "data", "elements", "xs"))
    function, doc = function.format(n=name), doc.format(p=plural)
    typed = chance.random() < 0.6
    signature = f"{argument}: list) -> {returned}:" if typed else f"{argument}):"
    imports = "from typing import List\n\n\n" if typed and chance.random() < 0.4 else ""
    shown = f"\n    >>> {function}({example})" if chance.random() < 0.7 else ""
    code = f'{imports}def {function}({signature}\n    """ {doc}{shown}\n    """\n'
    return chance.choice(programs.STUBS).format(code=code)


def _other_stub(chance: random.Random) -> str:
    """A function of any kind, named after what it does."""
    task = chance.choice(programs.TASKS)
    name = "_".join(word.strip(",.'").lower() for word in task.split()[:4])
    arguments = chance.choice(("data", "text", "n: int", "a, b", "values: list, k: int", "source"))
    head = f"def {name.replace('-', '_')}({arguments}):"
    code = f'{head}\n    """Write a function that {task}.\n    """\n'
    return chance.choice(programs.STUBS).format(code=code)


def _edit(chance: random.Random) -> str:
    old, new, code = chance.choice(programs.SNIPPETS)
    if chance.random() < 0.5:
        new = chance.choice(("value", "entry", "thing", "record", "target", "source", "holder"))
    asked = chance.choice(programs.EDITS).format(a=old, b=new)
    return chance.choice((f"{asked}\n\n```\n{code}```", f"{asked}\n\n{code}", f"{code}\n{asked}"))


def _sum(chance: random.Random) -> str:
    asked = chance.choice(programs.SUMS)
    large, small = chance.randint(12, 999), chance.randint(2, 40)
    further = large + small * chance.randint(1, 12)
    return asked.format(a=large, b=small, c=further, n=chance.choice(programs.NAMES))


def _list(chance: random.Random) -> str:
    count = chance.choice(("three", "five", "seven", "ten", "twelve"))
    what = chance.choice(_LISTED)
    about = chance.choice(topics.SUBJECTS)
    return chance.choice(_ASKED_LISTS).format(n=count, w=what, s=about)


_LISTED = (
    *(
        "words",
        "questions",
        "common phrases",
        "names for a company",
        "slogans",
        "ideas for a novel",
    ),
    *("riddles", "proverbs", "experiments", "titles of lectures", "exercises", "myths", "dates"),
    *("famous people", "inventions", "mistakes", "places", "numbers", "reasons", "predictions"),
)
_ASKED_LISTS = (
    "List {n} {w} connected with {s}.",
    "Give me {n} {w} about {s}, one per line.",
    "I need {n} {w} that have to do with {s}. Add one sentence to each.",
    "Name {n} {w} related to {s} and sort them alphabetically.",
    "Write a numbered list of {n} {w} on the subject of {s}.",
    "Can you think of {n} {w} for {s}? Put them in a table.",
)

_Kind = tuple[int, Callable[[random.Random], str], tuple[str, ...]]  # share, maker, follow-ups
_KINDS: tuple[_Kind, ...] = (
    (26, _question, topics.FOLLOW_UPS),
    (4, _plan, topics.FOLLOW_UPS),
    (3, _letter, topics.FOLLOW_UPS),
    (8, _role, topics.FOLLOW_UPS),
    (7, _passage, topics.FOLLOW_UPS),
    (9, _list, topics.FOLLOW_UPS),
    (11, _sum, topics.FOLLOW_UPS),
    (14, _task, topics.CODE_FOLLOW_UPS),
    (12, _stub, topics.CODE_FOLLOW_UPS),
    (4, _other_stub, topics.CODE_FOLLOW_UPS),
    (2, _edit, topics.CODE_FOLLOW_UPS),
)
