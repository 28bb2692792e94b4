"""Loading the C++ kernels, and the one team of threads a process has."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.native_kernels import native_library
from forerun.base.errors import UnsupportedError
from forerun.kernels.native import library as native
from forerun.kernels.native import sources

# One product by three threads, in a process of its own: no other test's threads are about.
PRODUCT = """
import os, sys, time
import numpy as np
from fixtures.native_kernels import linear, native_library, random_weight
weight = random_weight(np.random.default_rng(0), 512, 256)
x = np.ones((5, 256), np.float32)
team = native_library().team(3)
def product():
    return linear(team, [weight], x).tobytes()
first = product()
def threads():
    return len(os.listdir("/proc/self/task"))
"""
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _python(code: str, timeout_s: float = 60) -> str:
    """What `code` prints. RuntimeError with its errors if it fails."""
    roots = [str(Path(__file__).parents[2]), str(sources.FOLDER.parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {roots}\n{code}"],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installation without sources, whose shared object a test may write."""
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    native._found.cache_clear()
    yield tmp_path / sources.OBJECT_NAME
    native._found.cache_clear()


def test_the_library_is_loaded_once() -> None:
    assert native_library() is native.load()
    assert native.why_not() is None


@pytest.mark.usefixtures("elsewhere")
def test_without_a_shared_object_the_reason_names_the_remedy() -> None:
    """06 KER-1: the reason that is logged where the references serve."""
    assert native.load() is None
    assert native.why_not() == native.NOT_BUILT


def test_a_file_that_is_no_shared_object_is_a_reason(elsewhere: Path) -> None:
    """Of another machine, or cut short."""
    elsewhere.write_bytes(b"\x7fELF of something else")
    assert native.load() is None
    assert str(native.why_not()).startswith(native.STALE)
    assert "\n" not in str(native.why_not())


def test_a_shared_object_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that moved on since it was installed: structs may have changed."""
    native_library()
    monkeypatch.setattr(sources, "digest", lambda: "another")
    native._found.cache_clear()
    assert native.why_not() == native.STALE
    native._found.cache_clear()


def test_one_team_for_a_number_of_threads() -> None:
    library = native_library()
    assert library.team(2) is library.team(2)
    assert library.team(2) is not library.team(1)
    assert library.team(0).threads == 1


def test_an_instruction_set_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="on pdp11: this machine lacks"):
        native_library().team(1, isa="pdp11")


def test_what_is_in_use_in_one_line_without_torch() -> None:
    """08 RUN-1: `forerun show` asks it before a model is loaded."""
    native_library()
    code = "import runpy; runpy.run_module('forerun.kernels.native', run_name='__main__')"
    facts = json.loads(_python(code + "\nassert 'torch' not in sys.modules"))
    assert facts["isa"] in ("avx512", "avx2", "neon", "scalar")
    assert facts["threads"] == native.usable_cores()
    assert facts["library"] == str(sources.FOLDER / sources.OBJECT_NAME)
    assert facts["reason"] is None


@only_linux
def test_a_team_is_all_the_threads_there_are() -> None:
    """Two pools that spin for one machine's cores cost a factor of ten.

    With torch on one thread, as the composition root sets it, no OpenMP thread is made beside it.
    """
    native_library()
    code = """
import torch
torch.set_num_threads(1)
before = threads()
a = torch.ones(2000, 2000)
for _ in range(3):
    (a @ a).add_(1).softmax(-1)
    assert product() == first
print(threads() - before)
"""
    assert int(_python(PRODUCT + code)) == 0


@only_linux
def test_an_idle_team_sleeps() -> None:
    """After a call nothing uses a core: two members that spin would use a second in half a one."""
    native_library()
    code = """
time.sleep(0.05)
start = time.process_time()
time.sleep(0.5)
print(time.process_time() - start)
"""
    assert float(_python(PRODUCT + code)) < 0.02


@only_linux
def test_a_forked_child_makes_the_threads_anew() -> None:
    """A fork has none of its parent's threads: a call must not wait for them. Nor its parent."""
    native_library()
    code = """
child = os.fork()
if child == 0:
    os._exit(0 if product() == first and threads() >= 3 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), product() == first)
"""
    assert _python(PRODUCT + code).split() == ["0", "True"]


def test_callers_from_several_threads_take_turns() -> None:
    """A team serves one call at a time."""
    native_library()
    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print(all(answer == first for answer in pool.map(lambda _: product(), range(400))))
"""
    assert _python(PRODUCT + code).split() == ["True"]


@only_linux
def test_threads_that_cannot_be_had_are_an_error_in_one_line() -> None:
    """Some of them were made by then, and are joined again."""
    native_library()
    printed = _python(
        """
import resource
from forerun.base.errors import UnsupportedError
from forerun.kernels.native import library
loaded = library.load()
loaded.team(2)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20,) * 2)
try:
    loaded.team(64)
except UnsupportedError as error:
    print(error)
"""
    )
    assert "no team of 64 threads" in printed
