"""What the shared object is made of: its units, their flags, and a digest of the sources.

`setup.py` runs this file before anything is installed: the standard library is all it may import.
"""

import hashlib
import platform
from pathlib import Path

FOLDER = Path(__file__).parent
OBJECT_NAME = "libforerun.so"

FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden"),
    # results are equal bit for bit on all instruction sets: sums keep their order whatever flags
    # stand before these, and only written-out FMAs are fused
    *("-fno-fast-math", "-fno-unsafe-math-optimizations", "-fno-associative-math"),
    *("-fno-reciprocal-math", "-fno-finite-math-only", "-fsigned-zeros"),
    *("-fno-math-errno", "-ffp-contract=off"),
    "-Wno-psabi",
)
LINK_FLAGS = ("-shared", "-pthread")

Units = dict[str, tuple[str, ...]]  # files to compile, and the flags that each needs alone

AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
SCALAR = ("-O2",)  # half as fast as with -O3, and built in 4 s instead of 18
NEON = ("-march=armv8.2-a+dotprod",)

# the slowest to compile first; only these may use the instructions that they are named after
X86_64: Units = {"kernels_avx512.cpp": AVX512 + AVX2, "kernels_avx2.cpp": AVX2}
AARCH64: Units = {"kernels_neon.cpp": NEON}
COMMON: Units = {"kernels_scalar.cpp": SCALAR, "dispatch.cpp": (), "team.cpp": (), "pack.cpp": ()}
VECTOR_UNITS = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


def units(machine: str | None = None) -> Units:
    """What to compile for `machine` (None: this one), as `platform.machine` names it."""
    vector: Units = VECTOR_UNITS.get((machine or platform.machine()).lower(), {})
    return {**vector, **COMMON, "dispatch.cpp": (f'-DFR_SOURCES="{digest()}"',)}


def present() -> bool:
    """Whether the sources lie here: in a checkout they do, in an installed wheel they do not."""
    return (FOLDER / "dispatch.cpp").exists()


def digest() -> str:
    """Of all that a build reads, on any machine; the shared object carries that of its own build.

    Headers, units and flags: not what tests compile beside them.
    """
    names = {*COMMON, *X86_64, *AARCH64, *(file.name for file in FOLDER.glob("*.h"))}
    found = hashlib.sha256(repr((FLAGS, LINK_FLAGS, COMMON, X86_64, AARCH64)).encode())
    for name in sorted(names):
        found.update(name.encode() + b"\0" + (FOLDER / name).read_bytes())
    return found.hexdigest()[:16]
