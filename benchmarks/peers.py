"""How fast does forerun decode beside its peers, on the same weights, prompt and threads?

    python benchmarks/peers.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf \\
        [--llama-bench PATH] [--q4-0 OTHER.gguf] [--rounds 7] [--new-tokens 128]

Contenders: forerun's runner on its int4 import of that file; transformers' `generate` in bf16 on
the dequantised weights; llama.cpp on the file itself and, with --q4-0, on its best quantisation.
Greedy; decode only, prefill is taken out of every figure.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

from benchmarks.protocol import Contender, interleave, interval, ratio, report
from forerun.protocol.events import Done
from forerun.protocol.requests import CompletionRequest, TokenizeRequest
from forerun.scheduler.runners import LoadOptions, RunnerProcess
from forerun.settings import Settings

PROMPT = (
    "Write a long and detailed story about a lighthouse keeper who finds a strange map on the "
    "shore after a storm, and about the journey on which the map leads her. Describe the sea, the "
    "islands that she passes, the people whom she meets, and what she finds in the end."
)
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


def transformers_contender(gguf: Path, threads: int, new_tokens: int) -> Callable[[], float]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16
    )
    ids = torch.randint(100, 40_000, (1, DEPTH), generator=torch.Generator().manual_seed(0))

    def generate(count: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
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
    with RunnerProcess(given.model, settings, options=options) as runner:
        runner.load()
        new, threads = given.new_tokens, given.threads
        contenders = [
            Contender("forerun int4", forerun_contender(runner, new)),
            Contender("transformers bf16", transformers_contender(given.gguf, threads, new)),
        ]
        if given.llama_bench:
            files = {"llama.cpp Q4_1 (same weights)": given.gguf, "llama.cpp Q4_0": given.q4_0}
            contenders += [
                Contender(name, llama_contender(given.llama_bench, file, threads, new))
                for name, file in files.items()
                if file
            ]
        figures = interleave(contenders, given.rounds)
    ours = figures["forerun int4"]
    results = {f"{name}, tokens/s": interval(values) for name, values in figures.items()}
    for name, values in figures.items():
        if values is not ours:
            results[f"forerun / {name}"] = ratio(ours, values)
    report("Decode speed beside the peers", results, rounds=given.rounds, new_tokens=new)


if __name__ == "__main__":
    main()
