"""Does the server place, evict, unload and lose models on a GPU as it should?

    FORERUN_MODELS=STORE python scripts/cuda_server.py --model smollm2:135m --other tiny

Two stored models, real server processes, one GPU. Every line that it prints has been checked; the
last one is JSON.
"""

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.protocol import surroundings
from forerun.base.units import GIB, MIB, format_bytes
from forerun.scheduler.devices import nvidia_gpus

FREED_WITHIN_S = 10.0
MARGIN = 64 * MIB  # by which the driver's figure may be off after all is gone


class Server:
    """`forerun serve` on a free port."""

    def __init__(self, **variables: str) -> None:
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "FORERUN_HOST": "127.0.0.1:0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forerun.cli", "serve"],
            env={**environment, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        found = (re.search(r"127\.0\.0\.1:(\d+)", line) for line in self.process.stderr)
        self.port = next(int(match[1]) for match in found if match)

    def ask(self, path: str, **body: object) -> tuple[int, dict[str, object]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
        connection.close()
        return status, answer

    def generate(self, model: str, **more: object) -> dict[str, object]:
        options = {"temperature": 0, "num_predict": 32, **more.pop("options", {})}
        status, answer = self.ask(
            "/api/generate", model=model, prompt="Once", raw=True, stream=False, options=options
        )
        assert status == 200, answer
        return answer

    def loaded(self) -> dict[str, dict[str, object]]:
        _, answer = self.ask("/api/ps")
        models = answer["models"]
        assert isinstance(models, list)
        return {str(model["name"]): model for model in models}

    def unload(self, model: str) -> None:
        self.ask("/api/generate", model=model, keep_alive=0, stream=False)


@contextmanager
def serving(**variables: str) -> Iterator[Server]:
    server = Server(**variables)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.communicate(timeout=60)


def free() -> int:
    return nvidia_gpus()[0].free or 0


def freed(least: int) -> bool:
    deadline = time.monotonic() + FREED_WITHIN_S
    while free() < least and time.monotonic() < deadline:
        time.sleep(0.1)
    return free() >= least


def check_placing(model: str, other: str) -> dict[str, object]:
    """Models go to the GPU, what they take is what it loses, and it comes back."""
    before = free()
    with serving() as server:
        text = server.generate(model)["response"]
        server.generate(other)
        found = server.loaded()
        vram = {name: int(str(each["size_vram"])) for name, each in found.items()}
        assert len(found) == 2
        assert all(vram.values()), found
        taken = before - free()
        assert server.generate(model)["response"] == text
        for name in (model, other):
            server.unload(name)
        assert server.loaded() == {}
        assert freed(before - MARGIN), (before, free())
        server.generate(model, options={"num_gpu": 0})
        assert [each["size_vram"] for each in server.loaded().values()] == [0]
    print(f"two models take {format_bytes(taken)} of the GPU, ps says {vram}; all comes back")
    return {"taken": taken, "size_vram": vram}


def check_fit(model: str, other: str) -> dict[str, object]:
    """Where there is room for one, the other leaves; where there is none, an error says why."""
    with serving(FORERUN_GPU_OVERHEAD=str(free() + GIB)) as server:
        status, answer = server.ask("/api/generate", model=model, prompt="x", stream=False)
        assert status >= 400
        assert "available" in str(answer["error"]), answer
        print(f"no room: {answer['error']}")
    refused = str(answer["error"])
    with serving() as server:
        server.generate(model)
        alone = server.loaded()
        taken = int(str(next(iter(alone.values()))["size_vram"]))
    room = free()
    for spare in (2 * taken, 4 * taken, 8 * taken, 16 * taken):
        with serving(FORERUN_GPU_OVERHEAD=str(max(0, room - 457 * MIB - spare))) as server:
            status, answer = server.ask("/api/generate", model=model, prompt="x", stream=False)
            if status >= 400:
                continue
            server.generate(other)
            left = list(server.loaded())
            print(f"room for {format_bytes(spare)}: {left} after both were asked")
            return {"refused": refused, "taken_alone": taken, "room": spare, "left": left}
    raise AssertionError("the model never fitted")


def check_faults(model: str) -> dict[str, object]:
    """A killed runner is an error and gives its memory back; a client that leaves frees the GPU."""
    before = free()
    with serving() as server:
        server.generate(model)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"model": model, "prompt": "Once", "raw": True, "options": {"num_predict": 4000}}
        connection.request("POST", "/api/generate", json.dumps(body))
        response = connection.getresponse()
        response.readline()
        runners = subprocess.run(
            ["pgrep", "-f", "forerun.runner"], capture_output=True, text=True, check=True
        )
        for pid in runners.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        last = json.loads(response.read().splitlines()[-1])
        assert "error" in last, last
        connection.close()
        started = time.monotonic()
        server.generate(model)
        again = time.monotonic() - started
        connection.request("POST", "/api/generate", json.dumps(body))
        left = connection.getresponse()
        left.readline()
        left.close()
        connection.close()
        started = time.monotonic()
        server.generate(model, options={"num_predict": 1})
        after_leaving = time.monotonic() - started
        assert after_leaving < 2, after_leaving
    assert freed(before - MARGIN), (before, free())
    print(f"killed: {last['error']}; next answer after {again:.1f} s")
    return {"error": last["error"], "again_s": again, "after_leaving_s": after_leaving}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--other", required=True)
    given = parser.parse_args()
    results = {
        "placing": check_placing(given.model, given.other),
        "fit": check_fit(given.model, given.other),
        "faults": check_faults(given.model),
    }
    print(json.dumps({**results, **surroundings()}))


if __name__ == "__main__":
    main()
