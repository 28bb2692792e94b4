"""Builds the C++ kernels with the package, or says in one line why the package goes without them.

They are no Python extension: a shared object that `forerun.kernels.native.library` loads. What it
is made of stands in `forerun/kernels/native/sources.py`. CXX names the compiler, CXXFLAGS adds
flags before its own: what would change the results' bits has no effect.
"""

import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PLACE = "src/forerun/kernels/native"
SOURCES = runpy.run_path(f"{PLACE}/sources.py")


def compiler() -> list[str] | None:
    """The command of a C++ compiler: CXX, else what Python was built with, else the usual names."""
    asked = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or ""
    for command in (asked, "c++", "g++", "clang++"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def compile_units(command: list[str], folder: Path, target: Path) -> None:
    """RuntimeError with the compiler's words where it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))

    def run(arguments: list[str]) -> None:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join([*command, *arguments])}\n{done.stderr}")

    def compiled(unit: tuple[str, tuple[str, ...]]) -> str:
        name, flags = unit
        made = str(folder / f"{name}.o")
        run([*extra, *SOURCES["FLAGS"], *flags, "-c", f"{PLACE}/{name}", "-o", made])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, SOURCES["units"]().items()))
    run([*extra, *SOURCES["LINK_FLAGS"], *objects, "-o", str(target)])


class BuildKernels(build_ext):
    """Compiles with flags of our own: Python's are those of C extensions."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_name(SOURCES["OBJECT_NAME"]))

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.unlink(missing_ok=True)
        command = compiler()
        if command is None:
            without("there is no C++ compiler")
            return
        try:
            compile_units(command, Path(self.build_temp) / platform.machine(), target)
        except (RuntimeError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            without(f"{command[0]} failed; what it said stands above")

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]


def without(reason: str) -> None:
    sys.stderr.write(
        f"forerun: installed without its native kernels, PyTorch's serve instead: {reason}\n"
    )


setup(
    ext_modules=[
        Extension(
            "forerun.kernels.native.libforerun",
            sources=sorted(str(path) for path in Path(PLACE).glob("*.cpp")),
            depends=sorted(str(path) for path in Path(PLACE).glob("*.h")),
            optional=True,  # setuptools then copies it only where it was made
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
