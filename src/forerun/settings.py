"""The only reader of the environment: one frozen `Settings`, built by composition roots (ENV)."""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from forerun.base.address import Address
from forerun.base.errors import RequestError
from forerun.base.units import parse_duration, parse_keep_alive, parse_size

T = TypeVar("T")

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]*")

VARIABLES = {
    "FORERUN_HOST": "address of the server (default 127.0.0.1:11435)",
    "FORERUN_MODELS": "folder of the model store (default ~/.forerun)",
    "FORERUN_KEEP_ALIVE": "how long an idle model stays loaded (default 5m; -1 for ever)",
    "FORERUN_MAX_QUEUE": "requests that may wait for their turn (default 512)",
    "FORERUN_MAX_LOADED_MODELS": "models loaded at once (default 3, or 3 for each GPU)",
    "FORERUN_GPU_OVERHEAD": "memory kept free on each GPU, such as 1GiB (default 0)",
    "FORERUN_API_KEY": "key that clients of the server must send (default none)",
    "FORERUN_ORIGINS": "web pages allowed, as https://a.example,app://* (default: this machine's)",
    "FORERUN_CONTEXT_LENGTH": "tokens of context of a load (default 8192 on a CPU)",
    "FORERUN_CACHE_BYTES": "for each model's stored conversations, such as 2GiB "
    "(default: a quarter of the device's memory, at most 8GiB)",
    "FORERUN_DEVICE": "cpu, cuda, cuda:N or mps (default: the best there is)",
    "FORERUN_THREADS": "CPU threads (default: physical cores)",
    "FORERUN_LOAD_TIMEOUT": "longest load without progress (default 5m)",
    "FORERUN_CPU_KERNELS": "0 forces the reference paths (default 1)",
    "FORERUN_LOG": "debug, info or warning (default warning; info for `forerun serve`)",
    "FORERUN_LOG_FORMAT": "text or json (default text)",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, checked. None means that the default of its user applies."""

    host: Address
    host_given: bool
    models: Path
    keep_alive_s: float  # infinite: for ever
    max_queue: int
    max_loaded_models: int | None
    gpu_overhead: int  # bytes
    api_key: str | None = field(repr=False)
    origins: tuple[str, ...]
    context_length: int | None
    cache_bytes: int | None  # of stored snapshots, for each loaded model
    device: str | None
    threads: int | None
    load_timeout_s: float
    cpu_kernels: bool
    log: str | None
    log_format: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read and check every variable. Raises RequestError naming variable, value and range."""
        read = _Reader(os.environ if environment is None else environment)
        return cls(
            host=read(
                "FORERUN_HOST", Address.parse, Address(), "an address such as 127.0.0.1:11435"
            ),
            host_given=read("FORERUN_HOST", bool, False, ""),
            keep_alive_s=read(
                "FORERUN_KEEP_ALIVE",
                parse_keep_alive,
                300.0,
                "a duration such as 5m, a number of seconds, or -1 for ever",
            ),
            max_queue=read("FORERUN_MAX_QUEUE", _at_least(1), 512, "1 or more"),
            max_loaded_models=read("FORERUN_MAX_LOADED_MODELS", _at_least(1), None, "1 or more"),
            gpu_overhead=read("FORERUN_GPU_OVERHEAD", parse_size, 0, "a size such as 1GiB"),
            api_key=read("FORERUN_API_KEY", str, None, ""),
            origins=read(
                "FORERUN_ORIGINS", _origins, (), "origins such as https://app.example, app://* or *"
            ),
            models=read("FORERUN_MODELS", _folder, Path.home() / ".forerun", "a folder"),
            context_length=read("FORERUN_CONTEXT_LENGTH", _at_least(4), None, "4 or more"),
            cache_bytes=read(
                "FORERUN_CACHE_BYTES", parse_size, None, "a size such as 2GiB, or 0 to store none"
            ),
            device=read("FORERUN_DEVICE", _device, None, "cpu, cuda, cuda:N or mps"),
            threads=read("FORERUN_THREADS", _at_least(1), None, "1 or more"),
            load_timeout_s=read("FORERUN_LOAD_TIMEOUT", _duration, 300.0, "a duration such as 5m"),
            cpu_kernels=read("FORERUN_CPU_KERNELS", _switch, True, "0 or 1"),
            log=read(
                "FORERUN_LOG",
                _one_of("debug", "info", "warning"),
                None,
                "debug, info or warning",
            ),
            log_format=read("FORERUN_LOG_FORMAT", _one_of("text", "json"), "text", "text or json"),
        )

    def environment(self) -> dict[str, str]:
        """The variables that give a child process these same settings, but for the key.

        Nobody asks a child for it, and what a child does not know it cannot tell.
        """
        given: dict[str, object] = {
            "FORERUN_HOST": self.host if self.host_given else None,
            "FORERUN_MODELS": self.models,
            "FORERUN_KEEP_ALIVE": -1 if math.isinf(self.keep_alive_s) else f"{self.keep_alive_s}s",
            "FORERUN_MAX_QUEUE": self.max_queue,
            "FORERUN_MAX_LOADED_MODELS": self.max_loaded_models,
            "FORERUN_GPU_OVERHEAD": self.gpu_overhead,
            "FORERUN_ORIGINS": ",".join(self.origins) or None,
            "FORERUN_CONTEXT_LENGTH": self.context_length,
            "FORERUN_CACHE_BYTES": self.cache_bytes,
            "FORERUN_DEVICE": self.device,
            "FORERUN_THREADS": self.threads,
            "FORERUN_LOAD_TIMEOUT": f"{self.load_timeout_s}s",
            "FORERUN_CPU_KERNELS": int(self.cpu_kernels),
            "FORERUN_LOG": self.log,
            "FORERUN_LOG_FORMAT": self.log_format,
        }
        inherited = {k: v for k, v in os.environ.items() if k != "FORERUN_API_KEY"}
        return {**inherited, **{k: str(v) for k, v in given.items() if v is not None}}


def prefer(variables: Mapping[str, str]) -> None:
    """Set variables that a library reads when it is loaded, unless the user has set them."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True, slots=True)
class _Reader:
    environment: Mapping[str, str]

    def __call__(self, name: str, parse: Callable[[str], T], default: T, allowed: str) -> T:
        text = self.environment.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            raise RequestError(f"{name} is {text!r}; it must be {allowed}") from None


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip().rstrip("/").lower() for part in text.split(",") if part.strip())
    if not all(_ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError(text)
    return origins


def _at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise ValueError(text)
        return value

    return parse


def _device(text: str) -> str:
    kind, _, index = text.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (index and (kind != "cuda" or not index.isdigit())):
        raise ValueError(text)
    return text


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(text)
    return seconds


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(text)
        return text.lower()

    return parse
