"""What models run on here: `forerun show --system`."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from forerun import __version__
from forerun.base.json_types import JsonObject
from forerun.base.units import format_bytes
from forerun.scheduler.devices import Device, SystemDevices, pick
from forerun.settings import Settings

KERNELS = "forerun.kernels.native"  # as a program it says in one line of JSON what it is
LIMIT_S = 10.0
PYTORCH = "PyTorch's"


def system_rows(settings: Settings) -> list[list[str]]:
    """Names and values, a row each."""
    environment = settings.environment()
    devices = SystemDevices(environment).look()
    chosen = pick(devices, settings.device, lambda _: 0).name
    return [
        ["forerun", __version__],
        ["torch", _version("torch")],
        ["python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"],
        ["CPU kernels", cpu_kernels(settings, environment)],
        ["FORERUN_CPU_KERNELS", str(int(settings.cpu_kernels))],
        *([device.name, _memory(device)] for device in devices),
        ["models load on", chosen],
        ["model store", str(settings.models)],
    ]


def cpu_kernels(settings: Settings, environment: Mapping[str, str], module: str = KERNELS) -> str:
    """What serves models on the CPU: forerun's own kernels, or why they do not."""
    if not settings.cpu_kernels:
        return "references: FORERUN_CPU_KERNELS is 0"
    said = _ask(module, environment)
    reason = said.get("reason")
    if reason:
        return f"{PYTORCH}: {reason}"
    threads = settings.threads or said.get("threads")
    return f"forerun's: {said.get('isa')}, {threads} thread{'' if threads == 1 else 's'}"


def _ask(module: str, environment: Mapping[str, str]) -> JsonObject:
    """The kernels' own words, from a process of their own: this plane does not import them."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"forerun's did not answer within {LIMIT_S:.0f} s"}
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = None
    if done.returncode == 0 and isinstance(said, dict):
        return said
    words = done.stderr.strip().splitlines()
    return {"reason": f"forerun's failed: {words[-1] if words else f'exit {done.returncode}'}"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _memory(device: Device) -> str:
    shared = ", the system's" if device.shared else ""
    if device.free is None or device.total is None:
        return f"memory unknown{shared}"
    return f"{format_bytes(max(0, device.free))} free of {format_bytes(device.total)}{shared}"
