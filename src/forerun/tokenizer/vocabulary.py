"""Whether a draft model may propose for a target: their tokens must mean the same (DRM-2)."""

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.tokenizer.tokenizer import Tokenizer

_REMEDY = "a draft model needs the vocabulary of its target"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a tokenizer and a model's output say of their tokens."""

    ids: Mapping[str, int]  # of every token, as the tokenizer spells it; added tokens too
    special: Mapping[str, frozenset[int]]  # by role, such as bos and eos
    rows: int  # of the model's output; those after the last id are padding


def vocabulary_of(tokenizer: Tokenizer, rows: int) -> Vocabulary:
    """That of a model whose output has so many rows."""
    bos = tokenizer.special.bos_id
    special = {"bos": frozenset(() if bos is None else (bos,)), "eos": tokenizer.eos_ids}
    return Vocabulary(tokenizer.vocabulary(), special, rows)


def checked(target: Vocabulary, draft: Vocabulary) -> int:
    """The number of ids that both know: columns beyond are padding and must not be proposed.

    Raises LoadError naming the first difference, by id.
    """
    _check_ids(target.ids, draft.ids)
    _check_special(target.special, draft.special)
    tokens = max(target.ids.values(), default=-1) + 1
    for owner, vocabulary in (("target", target), ("draft", draft)):
        if vocabulary.rows < tokens:
            raise LoadError(
                f"the {owner}'s output has {vocabulary.rows} rows for {tokens} tokens; {_REMEDY}"
            )
    return tokens


def _check_ids(target: Mapping[str, int], draft: Mapping[str, int]) -> None:
    if target == draft:
        return
    differing = target.items() ^ draft.items()
    _, token = min((number, token) for token, number in differing)
    ours, theirs = (_told(vocabulary.get(token)) for vocabulary in (target, draft))
    raise LoadError(f"token {token!r} is {ours} in the target, {theirs} in the draft; {_REMEDY}")


def _check_special(
    target: Mapping[str, frozenset[int]], draft: Mapping[str, frozenset[int]]
) -> None:
    for role in sorted(target.keys() | draft.keys()):
        ours, theirs = (sorted(special.get(role, ())) for special in (target, draft))
        if ours != theirs:
            raise LoadError(
                f"{role} is {ours} in the target, {theirs} in the draft; {_REMEDY},"
                " special tokens included"
            )


def _told(number: int | None) -> str:
    return "missing" if number is None else str(number)
