"""Who runs in `peers.py`, and how: each contender in a process of its own, asked through a pipe.

Two teams of threads in one process slow each other down, so no two contenders share one.
"""

import json
import multiprocessing
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from benchmarks.protocol import timed
from forerun.protocol.events import Done
from forerun.protocol.requests import CompletionRequest
from forerun.settings import Settings, prefer
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM

    from forerun.runner.service import Service

HALF = 2  # bytes of a 16-bit number
GROUP = 32  # columns of a GGUF block
FIRST_WORD = 1000  # ids below it are bytes and control tokens
READ_BYTES = 1 << 30  # of the plain read loop: far more than any cache holds
READS = 3  # of that loop a round; the fastest counts


@dataclass(frozen=True, slots=True)
class Work:
    """One measurement. Its figure is tokens a second, but seconds a forward for `verify`."""

    kind: Literal["decode", "prefill", "verify"]
    context: int  # tokens in the caches before the first one that counts
    tokens: int  # that are measured, so many at a time for `verify`


Run = Callable[[Work], float]
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class Ours:
    """How forerun is loaded."""

    model: str
    threads: int
    own_kernels: bool = True  # False: PyTorch's serve, as on a machine without a compiler


def apart(
    stack: ExitStack, make: Callable[..., Callable[[Asked], Answered]], *arguments: object
) -> Callable[[Asked], Answered]:
    """`make(*arguments)` in a process of its own, which ends with `stack`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
    child.start()
    theirs.close()  # so that a child that died is the end of the pipe
    stack.callback(child.join)
    stack.callback(child.terminate)
    assert ours.recv() == "ready"

    def run(asked: Asked) -> Answered:
        ours.send(asked)
        answered: Answered = ours.recv()
        return answered

    return run


def _serve(
    pipe: Connection,
    make: Callable[..., Callable[[Asked], Answered]],
    arguments: tuple[object, ...],
) -> None:
    run = make(*arguments)
    pipe.send("ready")
    while True:
        pipe.send(run(pipe.recv()))


def forerun_contender(given: Ours) -> Run:
    """Tokens a second of the service."""
    service, chance = served(given), random.Random(0)
    return lambda work: _measured(service, work, chance)


def served(given: Ours) -> "Service":
    """The service that the Python API and every runner stand on."""
    from forerun.runner.loading import load_here
    from forerun.runner.request import LoadRequest
    from forerun.scheduler.runners import SPIN

    prefer(SPIN)
    if not given.own_kernels:
        leave_out_own_kernels()
    settings = Settings.from_environment()
    request = LoadRequest.under(settings, given.model, num_ctx=4096)
    return load_here(replace(request, threads=given.threads))


def _measured(service: "Service", work: Work, chance: random.Random) -> float:
    vocabulary = service.served.engine.model.facts.vocab_size
    if work.kind == "decode":
        chance = random.Random(work.context)  # the same prompt each round: warm, as it should be
    count = work.context if work.kind == "decode" else work.tokens + 1  # the last one is decoded
    request = CompletionRequest(
        prompt_ids=[chance.randrange(FIRST_WORD, vocabulary) for _ in range(count)],
        options={
            "temperature": 0,
            "repeat_penalty": 1,
            "draft": "off",
            "num_predict": work.tokens if work.kind == "decode" else 1,
        },
        ignore_eos=True,
    )
    done = next(event for event in service.complete(request) if isinstance(event, Done))
    if work.kind == "decode":
        return done.figures.generated_tokens / done.figures.generation_seconds
    evaluated = done.figures.prompt_tokens - 1 - done.figures.cached_tokens
    assert evaluated >= 0.95 * work.tokens, "the prompt was cached"
    return evaluated / done.figures.prompt_seconds


def leave_out_own_kernels() -> None:
    """From now on this process is one whose kernels of forerun's own were never built."""
    from forerun.kernels.native import library

    library._found = lambda: "they are left out to be compared with"


def verifying_contender(given: Ours) -> Run:
    """Forwards of several tokens with logits for each, as a round of drafts is verified."""
    import torch

    from forerun.contract.batch import Batch
    from forerun.runner.compose import load_engine
    from forerun.runner.request import LoadRequest

    settings = Settings.from_environment()
    stored = Store(settings.models).get(ModelName.parse(given.model))
    request = LoadRequest.under(settings, given.model, num_ctx=4096)
    engine = load_engine(stored, replace(request, threads=given.threads), lambda *_: None)
    chance, device = random.Random(0), torch.device("cpu")

    def forward(start: int, count: int) -> None:
        tokens = [chance.randrange(FIRST_WORD, engine.model.facts.vocab_size) for _ in range(count)]
        with torch.inference_mode():
            result = engine.model.forward(Batch.of(tokens, start, device), engine.caches)
            engine.model.unembed(result.hidden[0]).argmax(-1).tolist()

    def rewind(target: int) -> None:
        assert all(cache is None or cache.restore(None, target) for cache in engine.caches)

    def run(work: Work) -> float:
        rewind(0)
        forward(0, work.context)
        times = []
        for _ in range(20):
            times.append(timed(lambda: forward(work.context, work.tokens)))
            rewind(work.context)
        return statistics.median(times)

    return run


def bytes_read(name: str, work: Work) -> float:
    """What a decoded token has to read: every weight once, and the keys and values before it.

    An embedding table that is the head as well is read as that; of the prompt's own only a row.
    """
    stored = Store(Settings.from_environment().models).get(ModelName.parse(name))
    config = stored.json("config.json")
    layers, heads, hidden, kv_heads = (
        int(str(config[field]))
        for field in (
            *("num_hidden_layers", "num_attention_heads"),
            *("hidden_size", "num_key_value_heads"),
        )
    )
    row = layers * 2 * kv_heads * (hidden // heads) * HALF
    weights = sum(layer.blob.size for layer in stored.tensors)
    return weights + row * (work.context + work.tokens / 2)


def reading_contender(threads: int) -> Run:
    """Gigabytes a second of a plain read loop over memory that no cache holds."""
    import torch

    torch.set_num_threads(threads)
    numbers = torch.ones(READ_BYTES // 8, dtype=torch.int64)

    def run(_: Work) -> float:
        return READ_BYTES / min(timed(numbers.sum) for _ in range(READS)) / 1e9

    return run


def dequantised(model: StoredModel) -> "dict[str, Tensor]":
    """Every weight of a stored model, its draft's left out, as bfloat16 values."""
    import torch
    from safetensors.torch import load_file

    from forerun.kernels.dequantise.reference import dequantise
    from forerun.kernels.operands import AffineWeight
    from forerun.store.manifest import DRAFT_PREFIX

    weights = {}
    for layer in model.tensors:
        if layer.name.startswith(DRAFT_PREFIX):
            continue
        parts = load_file(model.file(layer))
        name = next(part for part in parts if not part.endswith((".scale", ".bias")))
        scale, bias = parts.get(f"{name}.scale"), parts.get(f"{name}.bias")
        values = parts[name]
        if scale is not None:
            bits = 4 if scale.shape[1] * GROUP == values.shape[1] * 8 else 8
            values = dequantise(AffineWeight(values, scale, bias, bits), torch.bfloat16)
        weights[name] = values.to(torch.bfloat16)
    return weights


def transformers_model(name: str) -> "LlamaForCausalLM":
    """transformers' model in bfloat16 with the stored weights, dequantised."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = Store(Settings.from_environment().models).get(ModelName.parse(name))
    peer = LlamaForCausalLM(LlamaConfig(**model.json("config.json"))).to(torch.bfloat16).eval()
    missing, surplus = peer.load_state_dict(dequantised(model), strict=False)
    assert not surplus
    assert set(missing) <= {"lm_head.weight"}, missing  # tied
    peer.tie_weights()
    return peer


def transformers_contender(name: str, threads: int) -> Run:
    """transformers' own `generate` on the same weights, dequantised."""
    import torch

    torch.set_num_threads(threads)
    peer = transformers_model(name)
    generator = torch.Generator().manual_seed(0)

    def generate(ids: "Tensor", count: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            peer.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                pad_token_id=0,
            )
        return time.perf_counter() - start

    def run(work: Work) -> float:
        count = work.context if work.kind == "decode" else work.tokens
        ids = torch.randint(FIRST_WORD, 40_000, (1, count), generator=generator)
        if work.kind == "prefill":
            return work.tokens / generate(ids, 1)
        count = work.tokens // 4 + 1  # the slowest by far: a quarter tells enough
        return (count - 1) / (generate(ids, count) - generate(ids, 1))

    return run


def llama_contender(binary: str, gguf: Path, threads: int) -> Run:
    """llama.cpp's own benchmark on a file."""

    def run(work: Work) -> float:
        of = ["-p", "0", "-n", str(work.tokens), "-d", str(work.context)]
        if work.kind == "prefill":
            of = ["-p", str(work.tokens), "-n", "0"]
        command = [binary, "-m", str(gguf), "-t", str(threads), *of, "-r", "1", "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)[0]["avg_ts"])

    return run
