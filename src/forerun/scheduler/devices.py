"""What memory this machine's devices have free (spec 08 FIT-1), without torch."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import pynvml  # type: ignore[import-untyped]

from forerun.base.machine_memory import SYSTEM_ROOT, system_memory
from forerun.base.units import MIB

GPU_MINIMUM = 457 * MIB  # of a CUDA context and what torch keeps beside its tensors
CPU_MINIMUM = 512 * MIB  # for the rest of the system


@dataclass(frozen=True, slots=True)
class Device:
    """`free` and `total` in bytes. None: the system does not say, and nothing is judged by it."""

    name: str  # cpu, cuda:N or mps
    free: int | None = None
    total: int | None = None
    shared: bool = False  # with the system's memory, though it is no CPU

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("cuda")


class Devices(Protocol):
    """Where models can go."""

    def look(self) -> Sequence[Device]:
        """All devices with fresh figures, the CPU first. Called in a thread."""
        ...


class SystemDevices:
    """The devices of this machine."""

    def __init__(self, environment: Mapping[str, str], *, cuda: bool | None = None) -> None:
        """
        environment  of the runners: which GPUs they see and how these are numbered
        cuda         whether torch can use NVIDIA GPUs; None: as it is installed
        """
        self._visible = environment.get("CUDA_VISIBLE_DEVICES")
        self._cuda = torch_has_cuda() if cuda is None else cuda

    def look(self) -> Sequence[Device]:
        system = cpu()
        gpus = nvidia_gpus(self._visible) if self._cuda else []
        if sys.platform == "darwin":
            return [system, Device("mps", system.free, system.total, shared=True)]
        return [system, *gpus]


def pick(devices: Sequence[Device], wanted: str | None, promised: Callable[[str], int]) -> Device:
    """Where a load goes: the device `wanted`, else the GPU with most room, else the CPU.

    wanted    cpu, cuda (any of them), cuda:N or mps; one that is not here is the runner's to refuse
    promised  bytes that models on a device may still grow by
    """
    if wanted not in (None, "cuda"):
        named = (device for device in devices if device.name == wanted)
        return next(named, Device(str(wanted)))
    gpus = [device for device in devices if device.is_gpu]
    if gpus:
        return max(gpus, key=lambda gpu: (gpu.free or 0) - promised(gpu.name))
    return Device("cuda") if wanted else next(d for d in devices if d.name == "cpu")


def torch_has_cuda(torch: Path | None = None) -> bool:
    """Whether torch was built for NVIDIA GPUs, told by its files: importing it takes seconds.

    torch  its folder; None: where it is installed
    """
    if torch is None:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return False
        torch = Path(spec.origin).parent
    names = ("libtorch_cuda.so", "torch_cuda.dll")
    return any((torch / "lib" / name).exists() for name in names)


def overhead(device: Device, gpu_overhead: int) -> int:
    """Bytes that are kept free on a device."""
    return GPU_MINIMUM + gpu_overhead if device.is_gpu else CPU_MINIMUM


def cpu(root: Path = SYSTEM_ROOT) -> Device:
    """The CPU, with what memory the system has for this process."""
    memory = system_memory(root)
    return Device("cpu", memory.free, memory.total)


def nvidia_gpus(visible: str | None = None) -> list[Device]:
    """NVIDIA GPUs as CUDA numbers them; none where there is no driver.

    visible  CUDA_VISIBLE_DEVICES: which ones count, and in which order
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(_count_gpus())]
        identities = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        seen = visible_indices(visible, identities)
        return [_gpu(number, handles[index]) for number, index in enumerate(seen)]
    except pynvml.NVMLError:
        return []
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def visible_indices(visible: str | None, identities: Sequence[str]) -> list[int]:
    """Indices in PCI order of the GPUs that CUDA shows, which stops at the first bad entry."""
    if visible is None:
        return list(range(len(identities)))
    found: list[int] = []
    for word in (part.strip() for part in visible.split(",")):
        index = _index(word, identities)
        if index is None or index in found:
            break
        found.append(index)
    return found


def _index(word: str, identities: Sequence[str]) -> int | None:
    if word.isascii() and word.isdigit():
        return int(word) if int(word) < len(identities) else None
    matching = [i for i, identity in enumerate(identities) if word and identity.startswith(word)]
    return matching[0] if len(matching) == 1 else None


def _count_gpus() -> int:
    return int(pynvml.nvmlDeviceGetCount())


def _gpu(number: int, handle: object) -> Device:
    name = f"cuda:{number}"
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:  # of a GPU whose memory is the system's
        system = cpu()
        return Device(name, system.free, system.total, shared=True)
    return Device(name, int(memory.free), int(memory.total))
