"""Which draft models may propose for a target (DRM-2)."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from forerun.base.errors import LoadError
from forerun.tokenizer.vocabulary import Vocabulary, checked

IDS = {"<s>": 0, "a": 1, "b": 2, "</s>": 3}
TARGET = Vocabulary(IDS, {"bos": frozenset({0}), "eos": frozenset({3})}, rows=4)


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(4, 4), (8, 4), (4, 64), (8, 16)])
def test_padding_on_either_side_is_no_difference(target_rows: int, draft_rows: int) -> None:
    """DRM-2: how many ids there are is told, so that those beyond are never proposed."""
    assert checked(replace(TARGET, rows=target_rows), replace(TARGET, rows=draft_rows)) == 4


@pytest.mark.parametrize(
    ("ids", "difference"),
    [
        (IDS | {"a": 2, "b": 1}, "token 'a' is 1 in the target, 2 in the draft"),
        (IDS | {"c": 4}, "token 'c' is missing in the target, 4 in the draft"),
        ({"<s>": 0, "a": 1, "</s>": 3}, "token 'b' is 2 in the target, missing in the draft"),
        (IDS | {"b": 3, "</s>": 2}, "token '</s>' is 3 in the target, 2 in the draft"),
    ],
)
def test_the_first_token_that_differs_is_named(ids: Mapping[str, int], difference: str) -> None:
    """DRM-2: every token string has the same id in both tokenizers."""
    with pytest.raises(LoadError) as raised:
        checked(TARGET, replace(TARGET, ids=ids, rows=9))
    assert difference in str(raised.value)
    assert "needs the vocabulary of its target" in str(raised.value)


@pytest.mark.parametrize(
    ("special", "difference"),
    [
        (
            {"bos": frozenset({0}), "eos": frozenset({3, 2})},
            "eos is [3] in the target, [2, 3] in the draft",
        ),
        ({"eos": frozenset({3})}, "bos is [0] in the target, [] in the draft"),
    ],
)
def test_special_ids_are_equal(special: Mapping[str, frozenset[int]], difference: str) -> None:
    """DRM-2."""
    with pytest.raises(LoadError) as raised:
        checked(TARGET, replace(TARGET, special=special))
    assert difference in str(raised.value)


@pytest.mark.parametrize("owner", ["target", "draft"])
def test_an_output_with_fewer_rows_than_tokens_is_refused(owner: str) -> None:
    """DRM-2."""
    short = replace(TARGET, rows=3)
    pair = (short, TARGET) if owner == "target" else (TARGET, short)
    with pytest.raises(LoadError, match=f"the {owner}'s output has 3 rows for 4 tokens"):
        checked(*pair)
