"""The packaged prompts, and prompts as the target's users' chats have them."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from fixtures.tiny import TURN_END, TURN_START, tiny_store
from forerun.base.errors import RequestError
from forerun.store.names import ModelName
from forerun.training.prompts import COUNT, Prompt, packaged
from forerun.training.text import encode, encode_packaged, openings, read_texts

# functions of HumanEval, which is what a head is measured with and must not know
MEASURED = (
    *("has_close_elements", "separate_paren_groups", "truncate_number", "below_zero"),
    *("mean_absolute_deviation", "intersperse", "parse_nested_parens", "filter_by_substring"),
    *("rolling_max", "make_palindrome", "string_xor", "all_prefixes", "how_many_times"),
)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return packaged()


def test_they_are_many_and_all_different(prompts: list[Prompt]) -> None:
    assert len(prompts) == COUNT >= 40_000
    assert len({prompt.text for prompt in prompts}) == COUNT
    followed = sum(bool(prompt.follow_up) for prompt in prompts) / COUNT
    assert 0.2 < followed < 0.3


def test_they_are_the_same_every_time(prompts: list[Prompt]) -> None:
    assert packaged() == prompts


def test_no_part_is_left_open(prompts: list[Prompt]) -> None:
    """A field of a template that nobody filled would show its braces."""
    for field in ("{s}", "{o}", "{t}", "{l}", "{n}", "{p}", "{a}", "{b}", "{c}", "{w}", "{code}"):
        assert not [prompt.text for prompt in prompts if field in prompt.text], field


def test_what_heads_are_measured_with_is_not_among_them(prompts: list[Prompt]) -> None:
    texts = "\n".join(prompt.text for prompt in prompts)
    assert not [name for name in MEASURED if f"def {name}(" in texts]


def test_a_few_are_of_every_kind() -> None:
    few = packaged(500)
    assert len(few) == 500
    assert any("def " in prompt.text for prompt in few)
    assert any("haiku" in prompt.text or "paragraph" in prompt.text for prompt in few)


def test_prompts_go_through_the_chat_template(tmp_path: Path) -> None:
    stored = tiny_store(tmp_path).get(ModelName.parse("tiny"))
    given = encode(stored, [Prompt("Hi", "More"), Prompt("Yes")])
    assert _said(given.prompt(0).tolist()) == "<user\nHi>\n<assistant\n"
    assert _said(given.follow_up(0).tolist()) == ">\n<user\nMore>\n<assistant\n"
    assert given.follow_up(1).tolist() == []
    assert TURN_END in given.eos
    assert given.early == 0
    assert encode(stored, [Prompt("Hi")], early=1).early == 1
    assert len(encode_packaged(stored, 30)) == 30


def test_what_stands_around_a_users_turn_is_the_templates(tmp_path: Path) -> None:
    stored = tiny_store(tmp_path).get(ModelName.parse("tiny"))
    found = openings(stored)
    assert _said(found.starts[0]) == "<user\n"
    assert _said(found.starts[1]) == "<system\nYou are a helpful assistant.>\n<user\n"
    assert len({tuple(start) for start in found.starts}) == len(found.starts)
    assert _said(found.closing) == ">\n<assistant\n"
    assert _said(found.follow_ups[1]) == ">\n<user\nGive me an example.>\n<assistant\n"
    assert TURN_END in found.eos


def _said(tokens: Iterable[int]) -> str:
    names = {TURN_START: "<", TURN_END: ">"}
    return "".join(names.get(token) or chr(token) for token in tokens)


def test_own_prompts_stand_between_blank_lines(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("First\nstill first\n\n\nSecond\n", encoding="utf-8")
    other.write_text("Third", encoding="utf-8")
    found = [prompt.text for prompt in read_texts([one, other])]
    assert found == ["First\nstill first", "Second", "Third"]


@pytest.mark.parametrize(
    ("content", "match"),
    [(b"\n\n", "bad holds no prompts"), (b"caf\xe9", "bad is not UTF-8"), (None, "cannot read")],
)
def test_a_file_without_prompts_is_refused_beside_others_too(
    tmp_path: Path, content: bytes | None, match: str
) -> None:
    (tmp_path / "good").write_text("Hi", encoding="utf-8")
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    with pytest.raises(RequestError, match=match):
        read_texts([tmp_path / "good", tmp_path / "bad"])
