"""What a tokenizer's files must say, and who answers when several do (spec 06 TOK-1, 4, 5)."""

import json

import pytest

from forerun.base.errors import LoadError, RequestError
from forerun.base.spans import Span
from forerun.tokenizer.tokenizer import Tokenizer
from unit.text.sample_tokenizers import files, ids_of, library


def id_of(text, kind="gpt2"):
    return library(kind).token_to_id(text)


def test_ids_that_two_files_state_differently_are_refused():
    """TOK-1, case F07: a conversion that renumbered special tokens."""
    stated = {"5": {"content": "<|im_end|>", "special": True}}
    with pytest.raises(LoadError, match=r"'<\|im_end\|>' has id 5 in .* and id 2 in"):
        Tokenizer.load(files("gpt2", tokenizer_config={"added_tokens_decoder": stated}))


def test_ids_that_tokenizer_json_itself_cannot_keep_are_refused():
    """TOK-1, case F07: the library closes gaps between added tokens without a word."""
    definition = json.loads(library("gpt2").to_str())
    definition["added_tokens"][-1]["id"] += 7
    with pytest.raises(LoadError, match=r"'<plain>' has id \d+ in tokenizer.json and id \d+"):
        Tokenizer.load({"tokenizer.json": json.dumps(definition).encode()})


def test_added_tokens_that_only_tokenizer_config_lists_are_matched():
    """TOK-1: published configs list tokens that an older tokenizer.json lacks."""
    new_id = library("gpt2").get_vocab_size()
    stated = {str(new_id): {"content": "<new>", "special": True}}
    tokenizer = Tokenizer.load(files("gpt2", tokenizer_config={"added_tokens_decoder": stated}))
    assert ids_of(tokenizer, "<new>") == [new_id]
    assert "<new>" in tokenizer.control_tokens


def test_settings_of_a_trainer_do_not_cut_or_pad():
    """TOK-1: tokenizer.json may ship with truncation and padding switched on."""
    definition = json.loads(library("gpt2").to_str())
    definition["truncation"] = {
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    tokenizer = Tokenizer.load({"tokenizer.json": json.dumps(definition).encode()})
    assert len(ids_of(tokenizer, "a b c d e")) > 2


@pytest.mark.parametrize(
    ("files_given", "message"),
    [
        ({}, "no tokenizer.json"),
        ({"tokenizer.json": b"{"}, "tokenizer.json is not JSON"),
        ({"tokenizer.json": b"[]"}, "no JSON object"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json cannot be read"),
    ],
)
def test_unreadable_files_are_named(files_given, message):
    with pytest.raises(LoadError, match=message):
        Tokenizer.load(files_given)


def test_a_decoder_that_needs_the_whole_text_is_refused():
    """TOK-3: such a tokenizer could not stream."""
    definition = json.loads(library("gpt2").to_str())
    definition["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(LoadError, match="WordPiece"):
        Tokenizer.load({"tokenizer.json": json.dumps(definition).encode()})


SOURCES = {
    "generation_config": {"eos_token_id": [3, 4], "bos_token_id": 5},
    "config": {"eos_token_id": 6, "bos_token_id": 7},
    "tokenizer_config": {"eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>"}},
    "special_tokens_map": {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
}
ANSWERS = [(5, {3, 4}), (7, {6}), (1, {2}), (0, {0})]


@pytest.mark.parametrize("absent", range(4))
def test_the_first_source_that_has_special_ids_answers(absent):
    """TOK-4: generation_config, config, tokenizer_config, special_tokens_map."""
    named = dict(list(SOURCES.items())[absent:])
    tokenizer = Tokenizer.load(files("gpt2", **named))
    assert (tokenizer.special.bos_id, tokenizer.eos_ids) == ANSWERS[absent]


def test_null_is_no_answer_and_text_config_counts():
    """TOK-4: published configs hold nulls, and wrapped models nest their text config."""
    tokenizer = Tokenizer.load(
        files(
            "gpt2",
            generation_config={"eos_token_id": None},
            config={"eos_token_id": None, "text_config": {"eos_token_id": 9}},
        )
    )
    assert tokenizer.eos_ids == {9}


@pytest.mark.parametrize("value", ["2", True, -1, [2, "3"], {"id": 2}])
def test_a_special_id_that_is_no_id_is_refused(value):
    with pytest.raises(LoadError, match=r"generation_config.json: eos_token_id is"):
        Tokenizer.load(files("gpt2", generation_config={"eos_token_id": value}))


def test_templates_see_the_names_of_special_tokens():
    """TOK-4, TMP-2: from the files, or spelled from the ids where only ids are stated."""
    tokenizer = Tokenizer.load(
        files(
            "gpt2",
            config={"eos_token_id": 2},
            tokenizer_config={"pad_token": "<|endoftext|>", "add_bos_token": False},
        )
    )
    assert tokenizer.special.names == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def with_bos(**config):
    return Tokenizer.load(files("gpt2", tokenizer_config={"bos_token": "<|im_start|>", **config}))


def test_bos_is_added_when_asked_and_never_twice():
    """TOK-5, PAR-4: a template that writes BOS itself gets no second one."""
    tokenizer = with_bos(add_bos_token=True)
    bos = tokenizer.special.bos_id
    assert tokenizer.encode_prompt([Span("a", True)]) == [bos, *ids_of(tokenizer, "a")]
    written = [Span("<|im_start|>a", True)]
    assert tokenizer.encode_prompt(written) == [bos, *ids_of(tokenizer, "a")]
    assert tokenizer.encode_prompt([]) == [bos]
    plain = with_bos(add_bos_token=False)
    assert plain.encode_prompt([Span("a", True)]) == ids_of(plain, "a")


def test_a_bos_that_a_user_typed_does_not_count():
    """TOK-5: it is plain text (TOK-2), so the real one is still added."""
    tokenizer = with_bos(add_bos_token=True)
    ids = tokenizer.encode_prompt([Span("<|im_start|>", False)])
    assert ids.count(tokenizer.special.bos_id) == 1
    assert tokenizer.decode(ids[1:], control=True) == "<|im_start|>"


def test_without_a_flag_the_post_processor_says_whether_bos_is_added():
    """TOK-4: Llama 3 states it nowhere else."""
    definition = json.loads(library("gpt2").to_str())
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    named = {"tokenizer_config.json": json.dumps({"bos_token": "<|im_start|>"}).encode()}
    named["tokenizer.json"] = json.dumps(definition).encode()
    tokenizer = Tokenizer.load(named)
    assert tokenizer.encode_prompt([Span("a", True)])[0] == tokenizer.special.bos_id == 1
    assert ids_of(tokenizer, "a") == library("gpt2").encode("a").ids


def test_a_bos_flag_without_a_bos_token_is_refused():
    with pytest.raises(LoadError, match="add_bos_token is true"):
        Tokenizer.load(files("gpt2", tokenizer_config={"add_bos_token": True}))


def test_a_lone_surrogate_is_the_callers_mistake():
    """Case E03: it would reach the library as an exception of another kind."""
    tokenizer = Tokenizer.load(files("gpt2"))
    with pytest.raises(RequestError, match=r"lone surrogate \(U\+D83D\) at character 1"):
        tokenizer.encode([Span("a\ud83d", False)])


def test_vocab_size_counts_to_the_last_id():
    assert Tokenizer.load(files("gpt2")).vocab_size == id_of("<plain>") + 1
