"""Everything that decides which head a run makes, as values that are written beside it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from forerun.base.json_types import JsonObject

Report = Callable[[str, int, int], None]  # what is going on, how much of it is done, of how much


def no_report(what: str, completed: int, total: int) -> None:
    """For those who do not look."""


@dataclass(frozen=True, slots=True)
class Writing:
    """How the target writes what its head is trained on."""

    rows: int = 2560  # sequences at once
    capacity: int = 640  # tokens of a sequence, prompt included
    answer: int = 384  # tokens of an answer at most
    temperature: float = 0.7  # of sequences that are sampled
    greedy: float = 0.5  # share of the sequences that are not
    least: int = 16  # tokens that the target must have written for a sequence to count
    self_written: float = 0.5  # share of the prompts that the target wrote itself, while they last

    def as_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One head and its schedule. The same recipe on the same corpus gives the same weights."""

    seed: int = 0
    columns: int = 8192  # of the reduced vocabulary
    unroll: int = 4  # steps of a chain that the loss looks at
    decay: float = 0.8  # weight of a step's loss against that of the step before
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: int = 100  # steps
    clip: float = 1.0  # norm of the gradient
    batch_tokens: int = 24_576  # columns of a batch, padding included
    steps: int | None = None  # None: as many as `minutes` allow
    minutes: float = 16.0  # of training, over all runs that continue one another

    def as_json(self) -> JsonObject:
        return asdict(self)


def going_on(recipe: Recipe) -> Recipe:
    """For a head that another training has made already."""
    return replace(recipe, learning_rate=5e-4, warmup=min(recipe.warmup, 50))


def default_taps(layers: int) -> tuple[int, ...]:
    """The streams a head reads: after a tenth of the layers, half, and all but two (EGL-3)."""
    return tuple(sorted({max(layers // 10, 1), layers // 2 + 1, max(layers - 2, 0)}))
