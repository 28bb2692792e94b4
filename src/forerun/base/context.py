"""How much context a load gets where nobody says anything (spec 08 SCH-7)."""

from forerun.base.units import GIB

CPU_CONTEXT = 8192
GPU_CONTEXTS = ((47 * GIB, 262144), (23 * GIB, 32768), (0, 4096))  # by the memory of the GPU


def automatic_context(gpu_bytes: int | None) -> int:
    """Tokens of context. `gpu_bytes` is all memory of the GPU; None: there is none."""
    if gpu_bytes is None:
        return CPU_CONTEXT
    return next(context for least, context in GPU_CONTEXTS if gpu_bytes >= least)
