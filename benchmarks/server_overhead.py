"""What do server and runner cost, beside the same engine in the caller's own process?

    python benchmarks/server_overhead.py [--model smollm2:135m] [--rounds 9] [--new-tokens 128]

Contenders: the Python API in a process of its own, and `forerun serve` read through a raw socket,
so that no client library counts. Tokens a second are those that the reader sees, from the first
piece of text to the end. The first token's time runs from the request to the first piece of text;
every prompt begins anew, so that nothing of it is cached.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import forerun
from benchmarks.protocol import Contender, interleave, interval, ratio, report

PROMPT = (
    "Story {number}. Once upon a time a lighthouse keeper found a strange map on the shore, and"
)
OPTIONS = {"temperature": 0, "repeat_penalty": 1, "draft": "off"}
IN_PROCESS, SERVED = "in process", "served"


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer as its reader saw it."""

    tokens_per_s: float
    first_token_s: float


Ask = Callable[[str, int], Seen]


@contextmanager
def in_process(model: str) -> Iterator[Ask]:
    """The Python API, in a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_answer_prompts, args=(model, theirs), daemon=True)
    child.start()
    assert ours.recv() is None

    def ask(prompt: str, count: int) -> Seen:
        ours.send((prompt, count))
        seen = ours.recv()
        assert isinstance(seen, Seen)
        return seen

    yield ask
    child.terminate()
    child.join()


def _answer_prompts(model: str, pipe: Connection) -> None:
    with forerun.load(model, num_ctx=2048) as loaded:
        pipe.send(None)
        while True:
            prompt, count = pipe.recv()
            started, first, tokens = time.perf_counter(), 0.0, 0
            for event in loaded.generate(prompt, num_predict=count, **OPTIONS):
                if isinstance(event, forerun.Chunk):
                    first = first or time.perf_counter()
                else:
                    tokens = event.figures.generated_tokens
            pipe.send(_seen(started, first, tokens))


@contextmanager
def served(model: str) -> Iterator[Ask]:
    """`forerun serve` with the model loaded."""
    environment = {**os.environ, "FORERUN_HOST": "127.0.0.1:0", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "forerun.cli", "serve"]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    port = next(
        int(m[1]) for line in server.stderr if (m := re.search(r"127\.0\.0\.1:(\d+)", line))
    )

    def ask(prompt: str, count: int) -> Seen:
        body = json.dumps(
            {
                "model": model,
                "prompt": prompt,
                "raw": True,
                "options": {**OPTIONS, "num_predict": count, "num_ctx": 2048},
            }
        ).encode()
        head = (
            f"POST /api/generate HTTP/1.0\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        started, first = time.perf_counter(), 0.0
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + body)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
                if not first and b'"response":"' in answer:
                    first = time.perf_counter()
        last = json.loads(answer.splitlines()[-1])
        return _seen(started, first, last["eval_count"])

    ask("Load", 1)
    yield ask
    server.terminate()
    server.communicate()


def _seen(started: float, first: float, tokens: int) -> Seen:
    rest = time.perf_counter() - first
    return Seen((tokens - 1) / rest if tokens > 1 else 0.0, first - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--new-tokens", type=int, default=128)
    given = parser.parse_args()
    numbers = itertools.count()

    def contender(name: str, ask: Ask, figure: Callable[[Seen], float], tokens: int) -> Contender:
        return Contender(name, lambda: figure(ask(PROMPT.format(number=next(numbers)), tokens)))

    with in_process(given.model) as library, served(given.model) as server:
        doors = ((IN_PROCESS, library), (SERVED, server))
        speeds = interleave(
            [contender(n, ask, lambda s: s.tokens_per_s, given.new_tokens) for n, ask in doors],
            given.rounds,
        )
        firsts = interleave(
            [contender(n, ask, lambda s: 1000 * s.first_token_s, 2) for n, ask in doors],
            3 * given.rounds,
        )
    added = [a - b for a, b in zip(firsts[SERVED], firsts[IN_PROCESS], strict=True)]
    report(
        "What do server and runner cost? Tokens/s, and milliseconds to the first token",
        {
            **{f"{name}, tokens/s": interval(figures) for name, figures in speeds.items()},
            "served / in process": ratio(speeds[SERVED], speeds[IN_PROCESS]),
            **{f"{name}, first token ms": interval(figures) for name, figures in firsts.items()},
            "added to the first token, ms": interval(added),
        },
        model=given.model,
    )


if __name__ == "__main__":
    main()
