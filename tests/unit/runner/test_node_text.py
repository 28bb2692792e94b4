"""What a cached stretch of tokens is recognised by; the scripted model's byte tokenizer."""

import pytest

from fixtures.scripted import scripted_store
from forerun.runner.node_text import LONGEST, text_of
from forerun.runner.text import load_text
from forerun.store.names import ModelName
from forerun.store.store import Store

START, END, IMAGE = 257, 258, 2**31


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    settings = scripted_store(tmp_path_factory.mktemp("node_text"))
    return load_text(Store(settings.models).get(ModelName.parse("scripted"))).tokenizer


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        ([], [], ""),
        ([*b"one\n\n two\tthree "], [], "one two three"),
        ([START, *b"user\nWhat?", END, *b"\n", START, *b"assistant\nThat."], [], "What? That."),
        ([START, *b"user\nuser\nof it"], [], "user of it"),
        ([END, *b"\n", START, *b"assistant"], [], ""),  # the template's marks and no words
        ([*b"user\nsaid"], [], "user said"),  # in the middle of a message: no role
        ([START, *b"a model of it"], [], "a model of it"),
        ([27, *b"[31mred"], [], "\x1b[31mred"),  # shown as it is; escaping is for terminals
        ([*"日本".encode()[2:-1]], [], ""),
        ([*"a日本b".encode()], [], "a日本b"),
        ([*b"see ", *[IMAGE] * 3, *b" it"], [], "see [media] it"),
        ([IMAGE + 5, IMAGE + 6], [], "[media]"),
        ([*b"A tide"], [*b"found it? "], "A tide … found it?"),
        ([START, *b"user\n"], [*b"the end"], "… the end"),
    ],
)
def test_words_without_the_template(tokenizer, first, last, text):
    assert text_of(first, last, tokenizer) == text


@pytest.mark.parametrize(("first", "last"), [(b"a" * 500 + b"b", b""), (b"a" * 90, b"b" * 90)])
def test_a_long_text_keeps_both_ends(tokenizer, first, last):
    text = text_of([*first], [*last], tokenizer)
    assert len(text) <= LONGEST
    assert text.startswith("aaaa")
    assert text.endswith("b")
    assert " … " in text


def test_a_long_text_is_cut_between_words(tokenizer):
    words = " ".join(f"word{number}" for number in range(40))
    head, tail = text_of([*words.encode()], [], tokenizer).split(" … ")
    assert set(f"{head} {tail}".split()) <= set(words.split())
    assert min(len(head), len(tail)) > 45


def test_a_text_of_the_longest_length_is_whole(tokenizer):
    assert text_of([*b"a" * LONGEST], [], tokenizer) == "a" * LONGEST
