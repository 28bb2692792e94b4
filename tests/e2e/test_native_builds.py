"""The C++ kernels built in other ways than an install does: sanitised, for ARM, and not at all."""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from fixtures.native_kernels import compiler_command, native_library
from forerun.kernels.native import sources

ROOT = Path(__file__).parents[2]
OPTIMISED = {"-O3", "-O2"}  # a minute of compiling where sanitisers are added
ZIGS_NEON = ("-mcpu=generic+dotprod",)  # it knows no -march
SANITISED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def _run(command: list[str], timeout_s: float = 240) -> None:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _objects(command: list[str], units: sources.Units, folder: Path) -> list[str]:
    def compiled(unit: tuple[str, tuple[str, ...]]) -> str:
        name, flags = unit
        made = str(folder / f"{name}.o")
        _run([*command, *flags, "-c", str(sources.FOLDER / name), "-o", made])
        return made

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compiled, units.items()))


@pytest.mark.slow
def test_sanitisers_find_nothing(tmp_path: Path) -> None:
    """06 KER-1: with exactly the memory that the kernels ask for; all widths and threads agree.

    The binary prints what differs; the address and undefined-behaviour sanitisers the rest.
    """
    native_library()
    kept = [flag for flag in sources.FLAGS if flag not in OPTIMISED]
    units = sources.units() | {"native_test.cpp": ()}
    units = {
        name: tuple(flag for flag in flags if flag not in OPTIMISED)
        for name, flags in units.items()
    }
    objects = _objects([*compiler_command(), *kept, *SANITISED], units, tmp_path)
    binary = str(tmp_path / "native_test")
    _run([*compiler_command(), *SANITISED, "-pthread", *objects, "-o", binary])
    _run([binary])


def test_a_team_leaves_its_work_to_the_caller_where_it_has_lost_a_core(tmp_path: Path) -> None:
    """And not where another process worked for a moment. The binary prints what fails."""
    native_library()
    units = {"team.cpp": (), "team_test.cpp": ()}
    objects = _objects([*compiler_command(), *sources.FLAGS], units, tmp_path)
    binary = str(tmp_path / "team_test")
    _run([*compiler_command(), "-pthread", *objects, "-o", binary])
    _run([binary])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ziglang") is None, reason="pip install ziglang (a compiler, 80 MB)")
def test_neon_kernels_compile(tmp_path: Path) -> None:
    """For 64-bit ARM, by a compiler that brings its own headers. Untested on hardware."""
    command = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu"]
    units = sources.units("aarch64") | {"kernels_neon.cpp": ZIGS_NEON}
    quickly = [*command, *sources.FLAGS, "-O0"]  # what is made of it runs nowhere
    objects = _objects(quickly, units, tmp_path)
    made = tmp_path / sources.OBJECT_NAME
    _run([*command, *sources.LINK_FLAGS, *objects, "-o", str(made)])
    assert made.read_bytes()[18] == 183, "an ELF file for AArch64"


def test_every_machine_has_its_units() -> None:
    """Apple and Windows name the same processors differently; others have the scalar kernels."""
    assert set(sources.units("AMD64")) == set(sources.units("x86_64"))
    assert set(sources.units("arm64")) == set(sources.units("aarch64"))
    assert "kernels_neon.cpp" in sources.units("arm64")
    assert [name for name in sources.units("riscv64") if "kernels" in name] == [
        "kernels_scalar.cpp"
    ]


NOTING = """#!/bin/sh
echo "$*" >> {log}
for made; do :; done
: > "$made"
"""
# what the order of sums, a fused product, and a NaN look like where a compiler may be inexact
PROBE = """
float sum(const float* x, int n) { float t = 0; for (int i = 0; i < n; ++i) t += x[i]; return t; }
float fused(float a, float b, float c) { return a * b + c; }
float cancelled(float a, float b) { return (a + b) - a; }
float shared(const float* x, float b) { return x[0] / b + x[1] / b; }
bool unordered(float a) { return a != a; }
"""
INEXACT = [
    *("-ffast-math", "-Ofast", "-ffp-contract=fast", "-funsafe-math-optimizations"),
    *("-freciprocal-math -ffinite-math-only", "-fassociative-math -fno-signed-zeros"),
]


def test_a_users_flags_stand_before_ours(tmp_path: Path) -> None:
    """In every call of the compiler, so that ours decide where both say something."""
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    compiler.write_text(NOTING.format(log=log))
    compiler.chmod(0o755)
    made = ("--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp"))
    environment = {**os.environ, "CXX": str(compiler), "CXXFLAGS": "-ffast-math -march=native"}
    command = [sys.executable, "setup.py", "-q", "build_ext", *made]
    subprocess.run(command, cwd=ROOT, env=environment, timeout=60, check=True)
    calls = [line.split() for line in log.read_text().splitlines()]
    assert len(calls) == len(sources.units()) + 1
    for call in calls:
        assert call[:2] == ["-ffast-math", "-march=native"]
        ours = sources.LINK_FLAGS if "-c" not in call else sources.FLAGS
        assert call[2 : 2 + len(ours)] == list(ours)
    assert list((tmp_path / "lib").rglob(sources.OBJECT_NAME))


@pytest.mark.parametrize("flags", INEXACT)
def test_no_flag_of_a_user_changes_arithmetic(flags: str, tmp_path: Path) -> None:
    """06 WID-1, KER-1: the same instructions with and without it."""
    native_library()
    probe = tmp_path / "probe.cpp"
    probe.write_text(PROBE)
    fma = ("-mfma",) if platform.machine() in ("x86_64", "AMD64") else ()

    def assembly(*before: str) -> str:
        made = tmp_path / "probe.s"
        _run(
            [*compiler_command(), *before, *sources.FLAGS, *fma, "-S", str(probe), "-o", str(made)]
        )
        return made.read_text()

    assert assembly(*flags.split()) == assembly()


@pytest.mark.parametrize(
    ("command", "reason"),
    [("no-such-compiler", "there is no C++ compiler"), ("false", "false failed")],
)
def test_an_install_goes_on_without_a_compiler_that_works(
    command: str, reason: str, tmp_path: Path
) -> None:
    """In one line that says what serves instead; nothing half made is left."""
    (tmp_path / "false").symlink_to("/bin/false")
    made = ("--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp"))
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", *made],
        cwd=ROOT,
        env={**os.environ, "CXX": command, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    said = f"forerun: installed without its native kernels, PyTorch's serve instead: {reason}"
    assert done.stderr.splitlines()[-1].startswith(said)
    assert not list(tmp_path.rglob("*.so"))
