"""Images and audio on their way into a prompt (spec 05 IMG): segments in, expanded tokens out.

Laws
1. Items of a prepared prompt are in order, not empty, inside the prompt and do not overlap.
2. Every media segment has an item at least, and no item comes of a text segment.
3. Equal segments give equal prepared prompts (IMG-7).
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

MediaKind = Literal["image", "audio"]


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A stretch of the prompt that is text: its tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MediaSegment:
    """One image or recording of the prompt, decoded by the text plane.

    image  data: 8-bit RGB, row by row; dims: height, width
    audio  data: mono float32 samples; dims: samples, samples a second
    """

    kind: MediaKind
    data: bytes
    dims: tuple[int, ...]


Segment = TextSegment | MediaSegment


class Layout(Protocol):
    """Positions that a request's media fixed ahead of time (M-RoPE tables).

    Opaque to the engine, which stamps it on every forward of the request, target and draft alike.
    """

    def positions(self, starts: Tensor, width: int) -> Tensor:
        """Rotary positions of each row's next `width` tokens, [channels, B, width] int64."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedItem:
    """What fills prompt positions `[start, end)`: a whole segment, a tile or a chunk of one."""

    start: int
    end: int
    segment: int  # index of the media segment that it comes of
    buffer: Tensor  # on the CPU: pixels or audio features, as the tower takes them
    dims: tuple[int, ...]  # of the preprocessing; part of the item's fold (02 KEY-2)
    causal: bool
    extra: object = None  # the model's own; nobody else looks at it


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """A prompt whose media have become tokens (IMG-3)."""

    tokens: tuple[int, ...]  # the whole expanded prompt
    items: tuple[PreparedItem, ...]
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One encoded item: the features of prompt positions `[start, end)`."""

    start: int
    end: int
    features: Tensor  # [end - start, hidden]
    causal: bool
