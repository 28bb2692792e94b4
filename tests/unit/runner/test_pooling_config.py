"""How a checkpoint says that it pools embeddings (08 API-13)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from forerun.base.errors import LoadError
from forerun.engine.pooling import Pooling
from forerun.runner.pooling import read_pooling

POOLING = "1_Pooling/config.json"
OLDER = {
    "word_embedding_dimension": 64,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
    "pooling_mode_weightedmean_tokens": False,
    "pooling_mode_lasttoken": False,
    "include_prompt": True,
}


@dataclass(frozen=True)
class Files:
    """Of a stored model, what is asked of it here."""

    documents: Mapping[str, object]

    def json_layer(self, path: str) -> str | None:
        return path if path in self.documents else None

    def read(self, layer: str) -> bytes:
        document = self.documents[layer]
        return document if isinstance(document, bytes) else json.dumps(document).encode()


def modes(documents: Mapping[str, object]) -> tuple[str, ...]:
    return read_pooling(Files(documents)).modes


def steps(*kinds: str, path: str = "1_Pooling") -> list[dict[str, object]]:
    return [
        {"idx": place, "name": str(place), "path": path if kind == "Pooling" else "", "type": kind}
        for place, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
        ("pooling_mode_lasttoken", "lasttoken"),
    ],
)
def test_each_flag_of_older_files(name: str, mode: str):
    assert modes({POOLING: {**OLDER, name: True}}) == (mode,)
    assert modes({POOLING: {name: True}}) == (mode,)


def test_several_flags_are_in_the_order_of_sentence_transformers():
    flags = {
        name: name in ("pooling_mode_mean_tokens", "pooling_mode_max_tokens") for name in OLDER
    }
    assert modes({POOLING: flags}) == ("max", "mean")


@pytest.mark.parametrize(
    ("stated", "read"),
    [("mean", ("mean",)), ("LastToken", ("lasttoken",)), (["mean", "cls"], ("mean", "cls"))],
)
def test_the_one_field_of_newer_files(stated: object, read: tuple[str, ...]):
    assert modes({POOLING: {"embedding_dimension": 64, "pooling_mode": stated}}) == read


@pytest.mark.parametrize("documents", [{}, {POOLING: OLDER}, {"modules.json": []}])
def test_the_mean_is_the_default(documents: Mapping[str, object]):
    assert modes(documents) == Pooling().modes == ("mean",)


def test_the_folder_is_the_one_that_the_steps_name():
    kinds = ("sentence_transformers.models.Transformer", "Pooling", "x.Normalize")
    documents = {
        "modules.json": steps(*kinds, path="2_Pooling"),
        "2_Pooling/config.json": {"pooling_mode": "max"},
        POOLING: {"pooling_mode": "cls"},
    }
    documents["modules.json"][1]["type"] = "sentence_transformers.models.Pooling"
    assert modes(documents) == ("max",)


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ({POOLING: {"pooling_mode_sum_tokens": True}}, "'pooling_mode_sum_tokens'"),
        ({POOLING: {"pooling_mode": "sum"}}, "'sum'"),
        ({POOLING: {"pooling_mode": ["mean", 3]}}, "by 3"),
        ({POOLING: []}, "no JSON object"),
        ({POOLING: b"{"}, "not valid JSON"),
        ({"modules.json": steps("a.Dense")}, "'a.Dense'"),
        ({"modules.json": [3]}, "type None"),
        ({"modules.json": steps("Pooling", path="here")}, "'here/config.json'"),
        ({"modules.json": steps("Pooling", "Pooling")}, "pools twice"),
    ],
)
def test_what_is_unknown_is_a_load_error_that_names_it(documents: Mapping[str, object], said: str):
    with pytest.raises(LoadError) as refused:
        modes(documents)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
