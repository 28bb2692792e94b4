"""The weights of a folder as their publisher stores them: whole, or in parts."""

from dataclasses import dataclass

from forerun.store.headers import TensorEntry


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One weight. Its parts are entries of the folder's files, unread."""

    name: str  # what a model calls it: `<base>.weight`, whatever the publisher does
    shape: tuple[int, ...]  # of the values
    kind: str  # a type of safetensors, or that of the publisher's quantisation
    values: TensorEntry  # numbers, or codes
    group: int = 0  # columns that share a scale, 0 where the weight is not quantised
    scale: TensorEntry | None = None  # of groups, or of the blocks of FP8
    bias: TensorEntry | None = None  # affine zero points
    global_scale: TensorEntry | None = None
    inverted: bool = False  # the global scale is stored as its reciprocal (PRQ)

    @property
    def parts(self) -> tuple[TensorEntry, ...]:
        held = (self.values, self.scale, self.bias, self.global_scale)
        return tuple(part for part in held if part is not None)

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(part.size for part in self.parts)


def plain(entry: TensorEntry) -> SourceTensor:
    """A tensor that stands for itself."""
    return SourceTensor(entry.name, entry.shape, entry.dtype, entry)
