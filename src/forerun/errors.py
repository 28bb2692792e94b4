"""What calls of the Python API raise: `from forerun.errors import RequestError`."""

from forerun.base.errors import (
    BusyError,
    CancelledError,
    DamagedModelError,
    ForerunError,
    ImportFailedError,
    LoadError,
    MachineError,
    NotFoundError,
    RequestError,
    RunnerError,
    StoreError,
    TooLargeError,
    UnsupportedError,
)

__all__ = [
    "BusyError",
    "CancelledError",
    "DamagedModelError",
    "ForerunError",
    "ImportFailedError",
    "LoadError",
    "MachineError",
    "NotFoundError",
    "RequestError",
    "RunnerError",
    "StoreError",
    "TooLargeError",
    "UnsupportedError",
]
