"""What devices have free: 08 FIT-1, FIT-2; the driver here only replays figures."""

import sys
from types import SimpleNamespace

import pytest
import torch

from forerun.base.units import GIB, MIB
from forerun.scheduler import devices
from forerun.scheduler.devices import (
    Device,
    SystemDevices,
    cpu,
    nvidia_gpus,
    overhead,
    pick,
    torch_has_cuda,
)

A100 = Device("cuda:0", 40 * GIB, 80 * GIB)
A40 = Device("cuda:1", 44 * GIB, 48 * GIB)
CPU = Device("cpu", 20 * GIB, 24 * GIB)


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable: 5000 kB\nOdd\n"}
V2 = "sys/fs/cgroup/"
V1 = "sys/fs/cgroup/memory/"


def limited(folder, limit, used, cache):
    return {
        f"{folder}memory.max": f"{limit}\n",
        f"{folder}memory.current": f"{used}\n",
        f"{folder}memory.stat": f"anon 1\ninactive_file {cache}\n",
    }


@pytest.mark.parametrize(
    ("files", "free", "total"),
    [
        (MEMINFO, 5000, 8000),
        ({**MEMINFO, "proc/self/cgroup": "0::/\n"}, 5000, 8000),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "0::/box\n",
                **limited(f"{V2}box/", "max", 1, 0),
                **limited(V2, 4000 * 1024, 1500 * 1024, 500 * 1024),
            },
            3000,
            4000,
        ),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "4:cpu,memory:/host/path\n3:cpuset:/\n",
                f"{V1}memory.limit_in_bytes": f"{6000 * 1024}",
                f"{V1}memory.usage_in_bytes": f"{4000 * 1024}",
                f"{V1}memory.stat": f"total_inactive_file {100 * 1024}",
            },
            2100,
            6000,
        ),
        (
            {
                **MEMINFO,
                "proc/self/cgroup": "4:memory:/\n",
                f"{V1}memory.limit_in_bytes": "9223372036854771712",
                f"{V1}memory.usage_in_bytes": "1",
                f"{V1}memory.stat": "",
            },
            5000,
            8000,
        ),
        ({**MEMINFO, "proc/self/cgroup": "0::/a\n", **limited(f"{V2}a/", 10, 99, 0)}, 0, 0),
    ],
)
def test_the_cpu_is_what_the_system_or_a_cgroup_leaves(tmp_path, files, free, total):
    """08 FIT-1: a container's limit counts where it is lower; page cache is not use."""
    found = cpu(write(tmp_path, files))
    assert found.free is not None
    assert (max(0, found.free) // 1024, (found.total or 0) // 1024) == (free, total)


def test_a_system_that_does_not_say_is_not_judged(tmp_path):
    assert cpu(tmp_path).free is None


def test_this_machine_has_a_cpu_with_memory():
    system, *_ = SystemDevices({}).look()
    assert system.name == "cpu"
    if sys.platform == "linux":
        assert 0 < system.free <= system.total


class Driver:
    """Replays what `pynvml` says of three GPUs, or fails where it is told to."""

    NVMLError = devices.pynvml.NVMLError
    MEMORY = ((1, 10), (2, 20), (3, 30))

    def __init__(self, fails=""):
        self.fails = fails

    def __getattr__(self, name):
        def call(*arguments):
            if name == self.fails:
                raise devices.pynvml.NVMLError(1)
            return {
                "nvmlDeviceGetCount": lambda: 3,
                "nvmlDeviceGetHandleByIndex": lambda index: index,
                "nvmlDeviceGetUUID": lambda index: f"GPU-{index}{index}",
                "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(
                    free=self.MEMORY[index][0] * GIB, total=self.MEMORY[index][1] * GIB
                ),
            }.get(name, lambda: None)(*arguments)

        return call


@pytest.mark.parametrize(
    ("visible", "free"),
    [
        (None, [1, 2, 3]),
        ("", []),
        ("2,0", [3, 1]),
        ("GPU-11, 0", [2, 1]),
        ("GPU-", []),  # of more than one
        ("1,9,0", [2]),  # CUDA stops at the first bad one
        ("1,1", [2]),
        ("-1", []),
    ],
)
def test_gpus_are_numbered_as_cuda_numbers_them(monkeypatch, visible, free):
    monkeypatch.setattr(devices, "pynvml", Driver())
    gpus = nvidia_gpus(visible)
    assert [gpu.free // GIB for gpu in gpus] == free
    assert [gpu.name for gpu in gpus] == [f"cuda:{i}" for i in range(len(free))]
    monkeypatch.setattr(sys, "platform", "linux")
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    seen = SystemDevices(environment, cuda=True).look()
    assert [each.free for each in seen[1:]] == [gpu.free for gpu in gpus]
    assert [each.name for each in SystemDevices(environment, cuda=False).look()] == ["cpu"]


def test_a_torch_without_cuda_is_told_by_its_files(tmp_path):
    """08 RUN-12: where it cannot use the GPU, a model goes to the CPU without being asked to."""
    assert torch_has_cuda() == (torch.version.cuda is not None)
    assert not torch_has_cuda(tmp_path)
    write(tmp_path, {"lib/libtorch_cuda.so": ""})
    assert torch_has_cuda(tmp_path)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetUUID"])
def test_without_a_driver_there_is_no_gpu(monkeypatch, call):
    monkeypatch.setattr(devices, "pynvml", Driver(fails=call))
    assert nvidia_gpus() == []


def test_a_gpu_without_memory_of_its_own_shares_the_systems(monkeypatch):
    """08 FIT-2."""
    monkeypatch.setattr(devices, "pynvml", Driver(fails="nvmlDeviceGetMemoryInfo"))
    first, *_ = nvidia_gpus()
    assert (first.name, first.shared) == ("cuda:0", True)


@pytest.mark.parametrize(
    ("there", "wanted", "promised", "name"),
    [
        ([CPU], None, {}, "cpu"),
        ([CPU, A100, A40], None, {}, "cuda:1"),
        ([CPU, A100, A40], None, {"cuda:1": 10 * GIB}, "cuda:0"),
        ([CPU, A100, A40], "cuda", {}, "cuda:1"),
        ([CPU, A100, A40], "cuda:0", {}, "cuda:0"),
        ([CPU, A100], "cpu", {}, "cpu"),
        ([CPU], "cuda", {}, "cuda"),  # the runner says that it is not here
        ([CPU], "cuda:3", {}, "cuda:3"),
        ([CPU], "mps", {}, "mps"),
    ],
)
def test_where_a_load_goes(there, wanted, promised, name):
    """The device asked for, else the GPU with most room, else the CPU."""
    assert pick(there, wanted, lambda device: promised.get(device, 0)).name == name


def test_what_is_kept_free():
    """08 FIT-1: FORERUN_GPU_OVERHEAD is kept on GPUs alone."""
    assert overhead(A40, 5) == 457 * MIB + 5
    assert overhead(CPU, 5) == 512 * MIB
