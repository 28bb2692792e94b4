"""What is decided when a model is put together.

02 STR-7; 05 PRP-8, PRE-1, LOD-1; 08 SCH-7, RUN-12.
"""

import dataclasses
from pathlib import Path

import pytest
import torch

from fixtures.stored import tiny_store
from fixtures.toy import ToyTarget
from forerun.base.errors import LoadError
from forerun.base.machine_memory import SystemMemory
from forerun.base.units import GIB
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.runner import compose
from forerun.runner.compose import (
    automatic_budget,
    choose_budget,
    choose_chunk,
    choose_context,
    choose_device,
    load_engine,
    prepare_device,
)
from forerun.runner.request import LoadRequest
from forerun.store.names import ModelName
from forerun.store.store import Store


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    lines = "PARAMETER num_ctx 77\nPARAMETER num_thread 3\nPARAMETER num_gpu 0\n"
    return tiny_store(tmp_path_factory.mktemp("compose"), modelfile=lines)


@pytest.fixture(scope="module")
def stored(settings):
    return Store(settings.models).get(ModelName.parse("tiny"))


@pytest.mark.parametrize(
    ("asked", "environment", "context"),
    [(None, None, 77), (None, 99, 77), (50, 99, 50), (5000, None, 1000)],
)
def test_the_context_is_the_callers_then_the_models_own(
    settings, stored, asked, environment, context
):
    """PRP-8: and never above the model's maximum, here 1000."""
    request = LoadRequest("tiny", settings.models, num_ctx=asked, default_context=environment)
    assert choose_context(request, stored, ToyTarget()) == context


@pytest.mark.parametrize(
    ("device_bytes", "budget"),
    [
        (4 * GIB, 1 * GIB),
        (16 * GIB + 3, 4 * GIB),
        (32 * GIB, 8 * GIB),
        (140 * GIB, 8 * GIB),
        (None, 1 * GIB),
    ],
)
def test_snapshots_take_a_quarter_of_their_device_and_8_gib_at_most(device_bytes, budget):
    """02 STR-7."""
    assert automatic_budget(device_bytes) == budget


@pytest.mark.parametrize(
    ("device", "asked", "budget"),
    [
        ("cpu", None, 3 * GIB),
        ("mps", None, 3 * GIB),  # its memory is the system's
        ("cuda", None, 6 * GIB),
        ("cpu", 12345, 12345),
        ("cpu", 0, 0),
        ("cuda", 99 * GIB, 99 * GIB),
    ],
)
def test_the_budget_is_the_callers_then_by_the_device_of_the_caches(
    monkeypatch, settings, device, asked, budget
):
    """02 STR-7: system memory on a CPU, a container's share included; a GPU's own."""
    monkeypatch.setattr(compose, "system_memory", lambda: SystemMemory(5, 12 * GIB))
    on_gpu = 24 * GIB if device == "cuda" else None
    monkeypatch.setattr(compose, "_gpu_bytes", lambda _: on_gpu)
    request = LoadRequest("tiny", settings.models, cache_bytes=asked)
    assert choose_budget(request, torch.device(device)) == budget


@pytest.mark.parametrize(
    ("asked", "warning"),
    [
        (None, None),
        (0, None),
        (1 << 20, None),
        (12 * GIB, None),
        (2, "only 2 bytes for stored conversations"),
        (13 * GIB, "14.0 GB for stored conversations is more than the device's 12.9 GB"),
    ],
)
def test_a_budget_that_is_hardly_meant_is_told(monkeypatch, settings, caplog, asked, warning):
    """A size without its unit, or one that the device does not have."""
    monkeypatch.setattr(compose, "system_memory", lambda: SystemMemory(5, 12 * GIB))
    choose_budget(LoadRequest("tiny", settings.models, cache_bytes=asked), torch.device("cpu"))
    assert [warning in line for line in caplog.messages] == ([] if warning is None else [True])


@pytest.mark.parametrize("wanted", ["cuda:99", "gpu", "cpu:1", "meta"])
def test_a_device_that_is_not_here_is_named_with_those_that_are(wanted):
    """08 RUN-12."""
    with pytest.raises(LoadError, match=f"'{wanted}' is not here; there is cpu"):
        choose_device(wanted)


@pytest.mark.parametrize(
    ("device", "weight_bytes", "chunk"),
    [("cpu", 133_000_000, 512), ("cpu", 1_000_000_000, 256), ("cuda", 16_000_000_000, 2048)],
)
def test_a_chunk_takes_about_two_seconds_at_most(device, weight_bytes, chunk):
    """05 PRE-1."""
    facts = dataclasses.replace(
        ToyTarget().facts, device=torch.device(device), weight_bytes=weight_bytes
    )
    assert choose_chunk(facts) == chunk


def test_a_model_is_put_together_as_its_parameters_and_its_device_say(settings, stored):
    """05 LOD-1, DEC-7: a CPU decodes without look-ahead."""
    threads, seen = torch.get_num_threads(), []
    request = LoadRequest("tiny", settings.models, cache_bytes=4321)
    try:
        engine = load_engine(stored, request, lambda what, done: seen.append((what, done)))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    facts = engine.model.facts
    assert (facts.device.type, facts.dtype) == ("cpu", torch.float32)  # num_gpu 0; its own dtype
    assert (engine.context, engine.look_ahead) == (77, 0)
    assert engine.prefix.budget_bytes == 4321
    assert engine.chunk == 512
    assert seen[-1] == ("loading weights", 1.0)
    assert [done for _, done in seen] == sorted(done for _, done in seen)


@pytest.mark.parametrize(("device", "switched"), [("cuda", [False]), ("cpu", [])])
def test_attention_that_plans_for_every_length_is_off_on_cuda(monkeypatch, device, switched):
    seen = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", seen.append)
    prepare_device(torch.device(device))
    assert seen == switched


def test_a_load_goes_from_the_device_to_the_weights_to_the_caches(monkeypatch, settings, stored):
    """05 LOD-1: and nothing is made in inference mode, although the device thread is in it."""
    order = []

    def noted(name):
        real = getattr(compose, name)

        def call(*arguments, **options):
            assert not torch.is_inference_mode_enabled() or name == "prepare_device"
            order.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(compose, name, call)

    for name in ("prepare_device", "load_model", "CacheOptions", "Sampler", "PrefixCache"):
        noted(name)
    threads = torch.get_num_threads()
    with torch.inference_mode():
        load_engine(stored, LoadRequest("tiny", settings.models), lambda *_: None)
    torch.set_num_threads(threads)
    assert order == ["prepare_device", "load_model", "CacheOptions", "Sampler", "PrefixCache"]


def test_the_architecture_is_looked_up_before_any_tensor_is_opened():
    """05 LOD-1: an unsupported model says so, whatever else is wrong with it."""
    placement = Placement(torch.float32, torch.device("cpu"), KernelChoice())
    with pytest.raises(LoadError, match="NewForCausalLM"):
        load_model({"architectures": ["NewForCausalLM"]}, [Path("absent")], placement)


def test_every_header_is_read_before_the_first_weight(stored):
    """05 LOD-1: a blob that is not there is found before work begins."""
    *files, last = [stored.file(layer) for layer in stored.tensors]
    placement = Placement(torch.float32, torch.device("cpu"), KernelChoice())
    heard = []
    with pytest.raises(LoadError, match="absent"):
        load_model(
            stored.json("config.json"),
            [*files, last.with_name("absent")],
            placement,
            lambda *done: heard.append(done),
        )
    assert heard == []
