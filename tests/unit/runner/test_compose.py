"""What is decided when a model is put together: 05 PRP-8, PRE-1, LOD-1; 08 SCH-7, RUN-12."""

import dataclasses

import pytest
import torch

from fixtures.stored import tiny_store
from fixtures.toy import ToyTarget
from forerun.base.errors import LoadError
from forerun.runner.compose import choose_chunk, choose_context, choose_device, load_engine
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
    request = LoadRequest("tiny", settings.models)
    try:
        engine = load_engine(stored, request, lambda what, done: seen.append((what, done)))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    facts = engine.model.facts
    assert (facts.device.type, facts.dtype) == ("cpu", torch.float32)  # num_gpu 0; its own dtype
    assert (engine.context, engine.look_ahead) == (77, 0)
    assert engine.chunk == 512
    assert seen[-1] == ("loading weights", 1.0)
    assert [done for _, done in seen] == sorted(done for _, done in seen)
