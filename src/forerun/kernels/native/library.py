"""The shared object of the C++ kernels from Python, by ctypes and without torch.

All arrays are passed as addresses: whoever calls owns them, keeps them alive and has them in the
layout that `abi.h` states. Sizes are not checked on the other side.
"""

import os
import threading
from ctypes import (
    CDLL,
    POINTER,
    Array,
    c_char_p,
    c_int32,
    c_int64,
    c_void_p,
)
from functools import cache
from pathlib import Path

from forerun.base.errors import UnsupportedError
from forerun.kernels.native import sources
from forerun.kernels.native.structs import FrDeltaFold, FrHead, FrLayer, FrLinear

NOT_BUILT = (
    "the native kernels are not built; install a C++ compiler (g++ or clang++) and then forerun "
    "again (`pip install -v` shows what failed)"
)
STALE = "the native kernels are of other sources than these; install forerun again (`pip install`)"


class Team:
    """Threads that run one kernel at a time, the caller's among them.

    Callers from several threads take turns. In a child process (a fork has no threads but the
    forking one) the next call makes the threads anew.
    """

    def __init__(self, functions: CDLL, threads: int, isa: str | None, *, steady: bool) -> None:
        """`steady`: never leave the caller to work alone where other processes hold the cores."""
        self.threads = threads
        self._functions = functions
        self._wanted = isa
        self._steady = steady
        self._turn = threading.Lock()
        self._address: int | None = None
        self.isa = self._made_in_turn()
        os.register_at_fork(after_in_child=self._forget)

    def linear(self, parts: "Array[FrLinear]", x: int, width: int, y: int, *, scratch: int) -> None:
        """y [width, rows of all parts] = x [width, columns] times the parts, all float32.

        `scratch`: `linear_scratch` bytes.
        """
        with self._turn:
            self._functions.fr_linear(self._made(), parts, len(parts), x, width, y, scratch)

    def layers(self, layers: int, steps: int, count: int, scratch: int) -> None:
        """Each writes its new rows of keys and values, and replaces the stream.

        layers, steps  arrays of `count` FrLayer and FrStep
        scratch        the most of what `layer_scratch` says of them, for the width of the steps
                       and this team's threads
        """
        with self._turn:
            self._functions.fr_layers(self._made(), layers, steps, count, scratch)

    def delta_fold(self, fold: FrDeltaFold, scratch: int) -> None:
        """What layers make of the same steps, to the last bit. scratch: `delta_fold_scratch`."""
        with self._turn:
            self._functions.fr_delta_fold(self._made(), fold, scratch)

    def head(
        self,
        head: FrHead,
        x: int,
        width: int,
        logits: int | None,
        *,
        top: int = 0,
        ids: int | None = None,
        values: int | None = None,
        scratch: int,
    ) -> None:
        """logits [width, rows] float32 of x [width, columns] float32; None: only the best.

        The `top` largest of each row by value, then by smaller id, go into `ids` (int32) and
        `values` (float32), both [width, top]; where a row has fewer numbers, ids are -1.
        `scratch`: `head_scratch` bytes.
        """
        with self._turn:
            self._functions.fr_head(self._made(), head, x, width, logits, top, ids, values, scratch)

    def _made(self) -> int:
        """The address of the threads that this process has; the caller holds the turn."""
        if self._address is None:
            isa = None if self._wanted is None else self._wanted.encode()
            found = self._functions.fr_team_new(self.threads, isa, int(self._steady))
            if not found:
                raise UnsupportedError(
                    f"no team of {self.threads} threads on {self._wanted or 'any instruction set'}"
                    ": this machine lacks the instructions, or has no more threads to give"
                )
            self._address = int(found)
        return self._address

    def _made_in_turn(self) -> str:
        with self._turn:
            name: bytes = self._functions.fr_team_isa(self._made())
        return name.decode()

    def _forget(self) -> None:
        """The parent's threads are not here, and cannot be joined; its turn may be taken."""
        self._address = None
        self._turn = threading.Lock()


class Library:
    """The functions of `abi.h`. Sizes are in elements, `*_bytes` and `*_scratch` in bytes."""

    def __init__(self, path: Path) -> None:
        """OSError where `path` is no shared object of this machine."""
        self.path = path
        self._functions = _declared(CDLL(str(path)))
        self._teams: dict[tuple[int, str | None, bool], Team] = {}
        self._making = threading.Lock()

    def built_from(self) -> str:
        """The digest of the sources that it was built from."""
        name: bytes = self._functions.fr_sources()
        return name.decode()

    def team(self, threads: int, *, isa: str | None = None, steady: bool = False) -> Team:
        """The process's team of so many threads, made once and kept.

        isa: None for the best of this machine. UnsupportedError where the machine lacks it.
        steady: for tests, see `Team`.
        """
        with self._making:
            key = (max(1, threads), isa, steady)
            if key not in self._teams:
                self._teams[key] = Team(self._functions, key[0], isa, steady=steady)
            return self._teams[key]

    def linear_supported(self, columns: int, group: int, bits: int) -> bool:
        return bool(self._functions.fr_linear_supported(columns, group, bits))

    def packed_bytes(
        self, rows: int, columns: int, group: int, bits: int, *, wide_terms: bool
    ) -> int:
        return int(self._functions.fr_packed_bytes(rows, columns, group, bits, int(wide_terms)))

    def pack(
        self, words: int, scales: int, zero_terms: int | None, shape: FrLinear, packed: int
    ) -> None:
        """Lays a weight out anew, into `packed_bytes` bytes at `packed`.

        words: uint32 [rows, columns * bits / 32], the lowest column in the lowest bits; scales and
        zero_terms: float32 [rows, columns / group]. `shape.packed` is not read.
        """
        self._functions.fr_pack(words, scales, zero_terms, shape, packed)

    def unpack_rows(self, weight: FrLinear, rows: int, count: int, values: int) -> None:
        """values float32 [count, columns]: the rows (int64 [count]) of a packed weight."""
        self._functions.fr_unpack_rows(weight, rows, count, values)

    def linear_scratch(self, columns: int, width: int) -> int:
        return int(self._functions.fr_linear_scratch(columns, width))

    def layer_supported(self, layer: FrLayer) -> bool:
        return bool(self._functions.fr_layer_supported(layer))

    def layer_scratch(self, layer: FrLayer, width: int, threads: int) -> int:
        return int(self._functions.fr_layer_scratch(layer, width, threads))

    def delta_fold_supported(self, fold: FrDeltaFold) -> bool:
        return bool(self._functions.fr_delta_fold_supported(fold))

    def delta_fold_scratch(self, fold: FrDeltaFold, threads: int) -> int:
        return int(self._functions.fr_delta_fold_scratch(fold, threads))

    def head_scratch(self, columns: int, width: int, top: int, threads: int) -> int:
        return int(self._functions.fr_head_scratch(columns, width, top, threads))


def load() -> Library | None:
    """The library of this installation, or None: see `why_not`. Looked for once a process."""
    found = _found()
    return found if isinstance(found, Library) else None


def why_not() -> str | None:
    """Why `load` answers None, in one line that names the remedy; None where it does not."""
    found = _found()
    return found if isinstance(found, str) else None


def usable_cores() -> int:
    """Logical cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


@cache
def _found() -> Library | str:
    path = sources.FOLDER / sources.OBJECT_NAME
    if not path.exists():
        return NOT_BUILT
    try:
        library = Library(path)
    except (OSError, AttributeError) as error:  # of another machine; of before a function was there
        return f"{STALE}; it cannot be loaded: {error}"
    if sources.present() and library.built_from() != sources.digest():
        return STALE
    return library


def _declared(functions: CDLL) -> CDLL:
    """The functions with their types; AttributeError where one is not there."""
    pointer, number, size = c_void_p, c_int32, c_int64
    linear, layer, head = POINTER(FrLinear), POINTER(FrLayer), POINTER(FrHead)
    fold = POINTER(FrDeltaFold)

    def declare(name: str, answer: object, *arguments: object) -> None:
        function = getattr(functions, name)
        function.restype, function.argtypes = answer, arguments

    declare("fr_sources", c_char_p)
    declare("fr_team_new", pointer, number, c_char_p, number)
    declare("fr_team_isa", c_char_p, pointer)
    declare("fr_linear_supported", number, number, number, number)
    declare("fr_packed_bytes", size, *[number] * 5)
    declare("fr_pack", None, pointer, pointer, pointer, linear, pointer)
    declare("fr_unpack_rows", None, linear, pointer, number, pointer)
    declare("fr_linear_scratch", size, number, number)
    declare("fr_linear", None, pointer, linear, number, pointer, number, pointer, pointer)
    declare("fr_layer_supported", number, layer)
    declare("fr_layer_scratch", size, layer, number, number)
    declare("fr_layers", None, pointer, pointer, pointer, number, pointer)
    declare("fr_delta_fold_supported", number, fold)
    declare("fr_delta_fold_scratch", size, fold, number)
    declare("fr_delta_fold", None, pointer, fold, pointer)
    declare("fr_head_scratch", size, *[number] * 4)
    outputs = (pointer, number, pointer, pointer, pointer)
    declare("fr_head", None, pointer, head, pointer, number, *outputs)
    return functions
