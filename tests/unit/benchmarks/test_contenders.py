"""Contenders in processes of their own, and what a decoded token has to read."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.contenders import Run, Work, apart, bytes_read
from fixtures.tiny import tiny_store
from forerun.store.names import ModelName
from forerun.store.store import Store


def its_process(_: str) -> Run:
    return lambda work: float(os.getpid() if work.kind == "decode" else os._exit(3))


def broken(_: str) -> Run:
    os._exit(3)


def test_each_contender_has_a_process_of_its_own() -> None:
    work = Work("decode", 1, 1)
    with ExitStack() as stack:
        one, other = (apart(stack, its_process, name) for name in "ab")
        assert len({one(work), other(work), float(os.getpid())}) == 3
        assert one(work) == one(work)


def test_a_contender_that_dies_is_no_endless_wait() -> None:
    with ExitStack() as stack:
        with pytest.raises(EOFError):
            apart(stack, broken, "a")
        run = apart(stack, its_process, "a")
        with pytest.raises(EOFError):
            run(Work("prefill", 0, 1))


def test_a_token_reads_the_weights_and_the_tokens_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_store(tmp_path, "llama", name="tiny")
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path))
    stored = Store(tmp_path).get(ModelName.parse("tiny"))
    weights = sum(layer.blob.size for layer in stored.tensors)
    config = stored.json("config.json")
    size = config["hidden_size"] // config["num_attention_heads"]
    row = config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * size * 2
    assert bytes_read("tiny", Work("decode", 10, 20)) == weights + 20 * row
