"""What the benchmark of drafting makes of answers, and the prompts that it asks."""

import json
from pathlib import Path

import pytest

from benchmarks.drafting import Answer, by_position, rates
from benchmarks.prompt_sets import EDITS, RENAMED, Prompt, edits, human_eval, mt_bench, spread
from benchmarks.speculation import equal_texts, fifth_percentile, speedups
from forerun.protocol.events import Drafting, DraftPosition


def answer(tokens: int, seconds: float, *positions: tuple[int, int]) -> Answer:
    found = [DraftPosition(accepted=a, observed=o) for a, o in positions]
    drafting = Drafting(drafter="lookup", rounds=1, drafted=1, accepted=1, positions=found)
    arrived = tuple(seconds * (i + 1) / tokens for i in range(tokens))
    return Answer(tuple(range(tokens)), arrived, 0, seconds, drafting if positions else None)


def test_a_speedup_is_of_one_prompts_speeds() -> None:
    plain = {"a": answer(100, 1.0), "b": answer(100, 2.0), "short": answer(31, 1.0)}
    drafted = {"a": answer(100, 0.5), "b": answer(50, 2.0), "short": answer(31, 0.1)}
    assert speedups(plain, drafted) == {"a": 2.0, "b": 0.5}
    assert equal_texts(plain, drafted) == 2


def test_a_stretch_of_an_answer_has_its_own_speed() -> None:
    early = Answer(tuple(range(4)), (1.0, 1.1, 1.2, 1.3), 0, 1.3, None)
    assert early.speed_between(1, 4) == pytest.approx(10)
    assert early.speed_between(0, 1) == pytest.approx(1)
    with pytest.raises(AssertionError, match="5 tokens were wanted, 4 came"):
        early.speed_between(1, 5)


def test_positions_are_summed_over_answers_of_any_depth() -> None:
    answers = [answer(1, 1, (3, 4), (1, 3)), answer(1, 1), answer(1, 1, (1, 4))]
    assert by_position(answers) == [(4, 8), (1, 3)]
    assert rates(by_position(answers), least=4) == [0.5]


@pytest.mark.parametrize(
    ("figures", "found"), [([2.0], 2.0), ([3.0, 1.0], 1.1), ([*map(float, range(101))], 5.0)]
)
def test_the_fifth_percentile(figures: list[float], found: float) -> None:
    assert fifth_percentile(figures) == pytest.approx(found)


def test_edits_are_files_of_a_few_hundred_tokens_with_a_name_to_change() -> None:
    assert {path.name for path in EDITS.iterdir()} == set(RENAMED)
    for prompt in edits():
        old, new = RENAMED[prompt.name]
        text = (EDITS / prompt.name).read_text()
        assert text.count(old) >= 2
        assert new not in text
        assert 350 <= len(text) <= 1000
        assert text in prompt.turns[-1][1]


def test_sets_are_read_from_their_files(tmp_path: Path) -> None:
    tasks, questions = tmp_path / "tasks.jsonl", tmp_path / "questions.jsonl"
    tasks.write_text(json.dumps({"task_id": "T/0", "prompt": "def f({}):\n"}) + "\n")
    asked = {"question_id": 81, "category": "writing", "turns": ["Hi", "And?"]}
    questions.write_text(json.dumps(asked) + "\n\n")
    (task,) = human_eval(tasks)
    assert task.name == "T/0"
    assert task.turns[0][1].endswith("```python\ndef f({}):\n```")
    assert mt_bench(questions) == [Prompt("writing/81", (("user", "Hi"),))]


def test_a_part_of_a_set_comes_from_all_over_it() -> None:
    prompts = [Prompt(str(number), ()) for number in range(10)]
    assert [prompt.name for prompt in spread(prompts, 3)] == ["0", "3", "6"]
    assert spread(prompts, 20) == spread(prompts, None) == prompts
