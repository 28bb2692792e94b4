"""How fast does forerun decode beside its peers, on the same weights, prompt and threads?

    python benchmarks/peers.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf \\
        [--llama-bench PATH] [--q4-0 OTHER.gguf] [--rounds 7] [--new-tokens 128]

Contenders, each in a process of its own: forerun on its int4 import of that file, through its
Python API and through a runner as the command line uses it; transformers' `generate` in bf16 on
the dequantised weights; llama.cpp on the file itself and, with --q4-0, on its best quantisation.
Greedy; decode only, prefill is taken out of every figure.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

import forerun
from benchmarks.protocol import Contender, interleave, interval, ratio, report
from forerun.protocol.events import Done
from forerun.protocol.requests import CompletionRequest, TokenizeRequest
from forerun.scheduler.runners import LoadOptions, RunnerProcess
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

if TYPE_CHECKING:
    from torch import Tensor

PROMPT = (
    "Write a long and detailed story about a lighthouse keeper who finds a strange map on the "
    "shore after a storm, and about the journey on which the map leads her. Describe the sea, the "
    "islands that she passes, the people whom she meets, and what she finds in the end."
)
OURS = "forerun int4 (Python)"
GROUP = 32  # columns of a GGUF block
DEPTH = 59  # tokens of context before the first decoded one


def forerun_contender(runner: RunnerProcess, new_tokens: int) -> Callable[[], float]:
    connection = runner.connection
    ids = connection.tokenize(TokenizeRequest(text=PROMPT, special=False))
    ids = (ids * 2)[:DEPTH]

    def run() -> float:
        request = CompletionRequest(
            prompt_ids=ids,
            options={"temperature": 0, "repeat_penalty": 1, "num_predict": new_tokens},
            ignore_eos=True,
        )
        done = next(e for e in connection.complete(request) if isinstance(e, Done))
        return done.figures.generated_tokens / done.figures.generation_seconds

    return run


def library_contender(name: str, new_tokens: int) -> Callable[[], float]:
    model = forerun.load(name, num_ctx=2048)
    text = model.detokenize((model.tokenize(PROMPT) * 2)[:DEPTH])

    def run() -> float:
        answer = model.generate(text, temperature=0, repeat_penalty=1, num_predict=new_tokens)
        done = list(answer)[-1]
        assert isinstance(done, forerun.Done)
        assert done.reason == "length", "the model ended its text early"
        return done.figures.generated_tokens / done.figures.generation_seconds

    return run


def apart(
    stack: ExitStack, make: Callable[..., Callable[[], float]], *arguments: object
) -> Callable[[], float]:
    """`make(*arguments)` in a process of its own: two OpenMP teams in one slow each other down."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
    child.start()
    stack.callback(child.join)
    stack.callback(child.terminate)
    assert ours.recv() == "ready"

    def run() -> float:
        ours.send("run")
        figure = ours.recv()
        assert isinstance(figure, float)
        return figure

    return run


def _serve(
    pipe: Connection, make: Callable[..., Callable[[], float]], arguments: tuple[object, ...]
) -> None:
    run = make(*arguments)
    pipe.send("ready")
    while pipe.recv() == "run":
        pipe.send(run())


def dequantised(model: StoredModel) -> "dict[str, Tensor]":
    """Every weight of a stored model as bfloat16 values."""
    import torch
    from safetensors.torch import load_file

    from forerun.kernels.dequantise.reference import dequantise
    from forerun.kernels.operands import AffineWeight

    weights = {}
    for layer in model.tensors:
        parts = load_file(model.file(layer))
        name = next(part for part in parts if not part.endswith((".scale", ".bias")))
        scale, bias = parts.get(f"{name}.scale"), parts.get(f"{name}.bias")
        values = parts[name]
        if scale is not None:
            bits = 4 if scale.shape[1] * GROUP == values.shape[1] * 8 else 8
            values = dequantise(AffineWeight(values, scale, bias, bits), torch.bfloat16)
        weights[name] = values.to(torch.bfloat16)
    return weights


def transformers_contender(name: str, threads: int, new_tokens: int) -> Callable[[], float]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    model = Store(Settings.from_environment().models).get(ModelName.parse(name))
    peer = LlamaForCausalLM(LlamaConfig(**model.json("config.json"))).to(torch.bfloat16).eval()
    missing, surplus = peer.load_state_dict(dequantised(model), strict=False)
    assert not surplus
    assert set(missing) <= {"lm_head.weight"}, missing  # tied
    peer.tie_weights()
    ids = torch.randint(100, 40_000, (1, DEPTH), generator=torch.Generator().manual_seed(0))

    def generate(count: int) -> float:
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

    return lambda: (new_tokens - 1) / (generate(new_tokens) - generate(1))


def llama_contender(binary: str, gguf: Path, threads: int, new_tokens: int) -> Callable[[], float]:
    command = [binary, "-m", str(gguf), "-t", str(threads), "-p", "0", "-n", str(new_tokens)]
    command += ["-d", str(DEPTH), "-r", "1", "-o", "json"]

    def run() -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)[0]["avg_ts"])

    return run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--q4-0", type=Path)
    parser.add_argument("--llama-bench")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    settings = Settings.from_environment()
    options = LoadOptions(num_ctx=2048, num_thread=given.threads)
    with ExitStack() as stack:
        runner = stack.enter_context(RunnerProcess(given.model, settings, options=options))
        runner.load()
        new, threads = given.new_tokens, given.threads
        contenders = [
            Contender(OURS, apart(stack, library_contender, given.model, new)),
            Contender("forerun int4 (runner)", forerun_contender(runner, new)),
            Contender(
                "transformers bf16",
                apart(stack, transformers_contender, given.model, threads, new),
            ),
        ]
        if given.llama_bench:
            files = {"llama.cpp Q4_1 (same weights)": given.gguf, "llama.cpp Q4_0": given.q4_0}
            contenders += [
                Contender(name, llama_contender(given.llama_bench, file, threads, new))
                for name, file in files.items()
                if file
            ]
        figures = interleave(contenders, given.rounds)
    ours = figures[OURS]
    results = {f"{name}, tokens/s": interval(values) for name, values in figures.items()}
    for name, values in figures.items():
        if name != OURS:
            results[f"{OURS} / {name}"] = ratio(ours, values)
    report("Decode speed beside the peers", results, rounds=given.rounds, new_tokens=new)


if __name__ == "__main__":
    main()
