"""What a composition root asks to be loaded."""

from dataclasses import dataclass
from pathlib import Path

from forerun.settings import Settings


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A model and what is fixed for as long as it is loaded. None: a default applies."""

    name: str
    models: Path  # folder of the store
    num_ctx: int | None = None  # asked for by name: wins over the model's own parameter
    default_context: int | None = None  # the environment's: wins over the device's default
    cache_bytes: int | None = None  # budget of stored snapshots (02 STR-7)
    device: str | None = None
    threads: int | None = None
    cpu_kernels: bool = True

    @classmethod
    def under(
        cls,
        settings: Settings,
        name: str,
        *,
        num_ctx: int | None = None,
        cache_bytes: int | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> "LoadRequest":
        """What the caller gives, and the settings where it gives nothing."""
        return cls(
            name=name,
            models=settings.models,
            num_ctx=num_ctx,
            default_context=settings.context_length,
            cache_bytes=settings.cache_bytes if cache_bytes is None else cache_bytes,
            device=device or settings.device,
            threads=threads or settings.threads,
            cpu_kernels=settings.cpu_kernels,
        )
