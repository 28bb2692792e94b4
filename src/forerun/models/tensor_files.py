"""Safetensors files mapped into memory: every tensor of a checkpoint by its name.

Tensors are views of file-backed pages, so a weight that is used as it is stored costs no memory of
its own, and one that is folded or cast costs only the result. Files are replaced by rename and
never rewritten (05 LOD-11), so a mapping stays what it was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from forerun.base.errors import LoadError, MachineError


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in its file, unread."""

    file: "MappedFile"
    name: str  # inside the file
    shape: tuple[int, ...]

    @property
    def row(self) -> int:
        """Numbers in the last dimension; a lone number is a row of one."""
        return self.shape[-1] if self.shape else 1

    @property
    def quantisation(self) -> Mapping[str, str]:
        """What the file states of the weight: `quant_type` and `group_size` (07 PLN-5).

        A file of several formats states a weight's own under keys that begin with its name.
        """
        general = self.file.metadata
        own = {key: general.get(f"{self.name}.{key}") for key in ("quant_type", "group_size")}
        if own["quant_type"] is None:
            return general
        return {key: value for key, value in own.items() if value is not None}

    def read(self) -> Tensor:
        return self.file.tensor(self.name)


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...


class _Opened(Protocol):
    """What we use of the library's file object, which has no types of its own."""

    def keys(self) -> list[str]: ...

    def metadata(self) -> dict[str, str] | None: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> Tensor: ...


class MappedFile:
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        """Map the file and check its header. MachineError names a file that cannot be used: it was
        checked when it was stored.
        """
        self.path = path
        try:
            self.size = path.stat().st_size
            self._file = cast(_Opened, safe_open(path, framework="pt", device="cpu"))
        except (SafetensorError, OSError) as error:
            raise MachineError(
                f"tensor file {path} cannot be read ({error}); pull or create the model again"
            ) from error
        self.metadata: Mapping[str, str] = self._file.metadata() or {}

    def entries(self) -> list[Stored]:
        return [
            Stored(self, name, tuple(self._file.get_slice(name).get_shape()))
            for name in self._file.keys()  # noqa: SIM118 - not a mapping
        ]

    def tensor(self, name: str) -> Tensor:
        return self._file.get_tensor(name)


def open_tensors(paths: Iterable[Path]) -> dict[str, Stored]:
    """Every tensor in `paths`, each file opened once, by the names that models use (05 LOD-2).

    `X.scale` becomes `X_scale`; `X.bias` becomes `X_qbias` where there is an `X.scale`, and is
    otherwise the bias of a linear. Decided once all names are known, since the parts of one weight
    may lie in several files.
    """
    stored: dict[str, Stored] = {}
    for path in dict.fromkeys(paths):
        for entry in MappedFile(path).entries():
            if entry.name in stored:
                raise LoadError(
                    f"tensor {entry.name} is in both {stored[entry.name].file.path} and {path}; "
                    "keep one of them"
                )
            stored[entry.name] = entry
    return {_model_name(name, stored): entry for name, entry in stored.items()}


def _model_name(name: str, stored: Mapping[str, Stored]) -> str:
    weight, _, part = name.rpartition(".")
    if part == "scale":
        return f"{weight}_scale"
    if part == "bias" and f"{weight}.scale" in stored:
        return f"{weight}_qbias"
    return name
