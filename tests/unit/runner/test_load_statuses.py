"""Whose fault a failed load is, as HTTP counts it: 08 API-14, RUN-4; 05 LOD-9, LOD-10.

400 where the model is to be mended, by whoever made it; 500 where it is the machine, its store or
us; 404 where there is no model. Real models, each spoilt in one part.
"""

import errno
from pathlib import Path

import pytest

from fixtures.remade import remade
from fixtures.scripted import scripted_store
from fixtures.scripted_model import ARCHITECTURE, build
from forerun.models import tensor_files
from forerun.models.registry import REGISTRY
from forerun.protocol.status import RunnerStatus
from forerun.runner import loading
from forerun.runner.request import LoadRequest
from forerun.runner.serving import Runner
from forerun.runner.state import LoadState
from forerun.store import manifest as kinds
from forerun.store.manifest import DraftConfig
from forerun.store.names import ModelName
from forerun.store.store import Store

GOOD = "good"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    settings = scripted_store(tmp_path, names=(GOOD,))
    monkeypatch.setitem(REGISTRY, ARCHITECTURE, build)
    return Store(settings.models)


def outcome(store: Store, name: str, *, device: str | None = "cpu") -> RunnerStatus:
    """How the load ends that a runner process would begin."""
    runner = Runner(LoadRequest(name, store.folders.root, device=device, threads=1))
    runner._load()
    runner._thread.close()
    return runner.state.status


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        ({"config": {"architectures": ["NoSuchForCausalLM"]}}, "NoSuchForCausalLM is not support"),
        ({"config": {"padding": "many"}}, "config.json sets padding to 'many'"),
        ({"config": {"padding": 7}}, "tensor padding has shape [1024]"),
        ({"files": {"tokenizer.json": b'{"added_tokens":1}'}}, "added_tokens is not a list"),
        ({"config": {"load_error": "no such tensor"}}, "no such tensor"),
        ({"layers": {kinds.PARAMS: b'{"draft":"model"}'}}, "says PARAMETER draft model and has no"),
        ({"layers": {kinds.PARAMS: b'{"draft_layers":"1"}'}}, "is for an EAGLE-3 head"),
        ({"layers": {kinds.TEMPLATE: b"{% if %}"}}, "template"),
        ({"layers": {kinds.TEMPLATE: b"{{ .Prompt }}"}}, "Go"),
        ({"without": ("config.json",)}, "has no config.json"),
        ({"files": {"modules.json": b"{"}}, "modules.json"),
        (
            {
                "draft": DraftConfig("LlamaForCausalLM"),
                "files": {"draft/config.json": b'{"architectures":["LlamaForCausalLM"]}'},
            },
            "the draft of spoilt:latest: config.json has no hidden_size",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_is_wrong_in_itself_is_a_400(
    store: Store, spoilt: dict[str, object], reason: str
) -> None:
    remade(store, GOOD, "spoilt", **spoilt)
    found = outcome(store, "spoilt")
    assert (found.state, found.failure_status) == ("failed", 400), found.reason
    assert reason in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize("damage", ["cut short", "other bytes", "gone", "spoilt header"])
def test_a_damaged_store_is_a_500(store: Store, damage: str) -> None:
    """The model was in order when it was stored."""
    model = store.get(ModelName.parse(GOOD))
    layer = model.tensors[0] if damage == "spoilt header" else model.json_layer("config.json")
    assert layer is not None
    path = model.file(layer)
    intact = path.read_bytes()
    path.chmod(0o600)
    if damage == "gone":
        path.unlink()
    elif damage == "spoilt header":
        path.write_bytes(intact.replace(b"{", b"[", 1))
    else:
        path.write_bytes(intact[:-1] if damage == "cut short" else intact.replace(b"{", b"["))
    found = outcome(store, GOOD)
    assert (found.state, found.failure_status) == ("failed", 500), found.reason


def test_a_file_that_the_machine_does_not_map_is_a_500(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(tensor_files, "safe_open", refuses)
    found = outcome(store, GOOD)
    assert (found.state, found.failure_status) == ("failed", 500), found.reason
    assert "Cannot allocate memory" in found.reason


def test_a_device_that_is_not_here_is_a_500(store: Store) -> None:
    found = outcome(store, GOOD, device="cuda:7")
    assert (found.failure_status, found.reason[:18]) == (500, "device 'cuda:7' is")


def test_a_model_that_is_not_here_is_a_404(store: Store) -> None:
    assert outcome(store, "absent").failure_status == 404


def test_a_bug_of_ours_is_a_500(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(loading, "load_text", breaks)
    found = outcome(store, GOOD)
    assert (found.failure_status, found.reason) == (500, "internal error: KeyError: 'x'")


def test_the_model_itself_loads(store: Store) -> None:
    """And what is loading or ready has no status of a failure."""
    assert LoadState().status.failure_status == 0
    found = outcome(store, GOOD)
    assert (found.state, found.failure_status) == ("ready", 0)
