"""What the engine knows of a model, target or draft (spec 06 CON).

Laws
1. `forward` over n tokens equals forwards over any split of them, within the tolerance of the
   kernels at work (bit for bit where spec 06 WID holds).
2. A forward advances every cache it was given by each row's valid length. If it raises, no write
   stays open, but layers may rest at different offsets: the session restores or frees them.
3. `new_caches` and the model's tensors are all the state there is: two lists of caches are two
   independent sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.media import MediaItem, PreparedItem, PreparedMedia, Segment

Caches = Sequence[LayerCache | None]


WIDEST_ROUND = 16  # columns of a verification forward: the current token and 15 drafts (KER-2)


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What a list of caches is made for."""

    context: int  # tokens a sequence may hold
    slack: int = 256  # tokens a sliding-window layer can rewind live after its window has wrapped

    def __post_init__(self) -> None:
        assert self.slack >= WIDEST_ROUND, f"a slack of {self.slack} does not hold a round (ROT-1)"


@dataclass(frozen=True, slots=True)
class Forward:
    """Outputs of one forward. Under a captured graph the next replay overwrites both."""

    hidden: Tensor  # [B, L, H], what gets unembedded
    conditioning: Tensor  # [B, L, C], what a draft is fed; the same tensor for plain models


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The numbers that other parts plan with."""

    vocab_size: int  # columns of the logits, padding rows included
    hidden_size: int
    layers: int
    max_context: int
    weight_bytes: int  # storage of all parameters as held
    device: torch.device
    dtype: torch.dtype  # of activations and caches
    own_threads: bool = False  # forwards run on threads of their kernels: torch needs one alone


class TargetModel(Protocol):
    """The served model."""

    @property
    def facts(self) -> ModelFacts: ...

    def new_caches(self, options: CacheOptions) -> list[LayerCache | None]:
        """One entry a layer, None for a layer without state. Made at load and never shortened."""
        ...

    def forward(self, batch: Batch, caches: Caches | None) -> Forward:
        """Run all layers. None for `caches`: attend within the batch alone (CON-9)."""
        ...

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] of hidden states [..., H]."""
        ...

    def self_draft(self) -> "DraftModel | None":
        """A view of the model's inline head, present iff the head's tensors are (CON-5)."""
        ...


@runtime_checkable
class TappedModel(Protocol):
    """A target that can hand a draft the residual streams of several layers (EGL-3)."""

    def tap(self, layers: Sequence[int]) -> None:
        """From now on `Forward.conditioning` is the streams entering `layers`, concatenated.

        Entry i is the stream after i layers (0: the embedding; `layers` count: after the last).
        Called once, at load, by the composition root; never between forwards.
        """
        ...


@runtime_checkable
class SharedTables(Protocol):
    """A target whose token table and output head a draft may use for its own (EGL-6, DFL-5).

    All of it raw, as the checkpoint's tensors say: whatever the target itself does to embeddings
    and logits beyond them (a scale, a softcap) is not applied.
    """

    def embed(self, ids: Tensor) -> Tensor:
        """Rows [..., H] of the token table for int64 ids [...], before any scale."""
        ...

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Products [..., vocab] of hidden states [..., H] with the head, before any softcap."""
        ...

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows [n, H] of the head for int64 ids [n], without bias, for a head over fewer tokens.

        For use at load: it may cost as much as a long forward, and copies.
        """
        ...


@dataclass(frozen=True, slots=True)
class Best:
    """The largest logits of some rows, from the largest down; of equal ones the smaller id first.

    Where a row of the logits holds too few numbers, which NaN are not, ids are -1 at its end.
    """

    values: Tensor  # [rows, count] fp32
    ids: Tensor  # [rows, count] int64


@runtime_checkable
class RankedLogits(Protocol):
    """A target that can tell the largest logits without writing all of them."""

    def best(self, hidden: Tensor, count: int) -> Best | None:
        """The `count` largest of `unembed(hidden)`, bit for bit, for hidden states [rows, H].

        None: this model cannot, or all of them cost no more.
        """
        ...


@runtime_checkable
class MediaModel(Protocol):
    """A target that also takes images or audio."""

    def prepare_media(self, segments: Sequence[Segment]) -> PreparedMedia:
        """Expand media segments among text segments. CPU only, deterministic, once a request.

        A kind without a tower is a caller's mistake and refused by name (CON-6).
        """
        ...

    def encode_media(self, item: PreparedItem) -> MediaItem:
        """Run the tower over one item."""
        ...


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """The numbers of a draft that its drafter plans with, and that must fit its target."""

    columns: int  # of the logits; what they stand for is `DraftModel.column_ids`
    hidden_size: int  # of what gets unembedded
    taps_size: int  # of the target's conditioning, as `condition` takes it
    step_size: int  # of the conditioning that chain steps are fed and hand on
    max_context: int
    weight_bytes: int  # storage of its own parameters as held, without shared tables
    device: torch.device
    dtype: torch.dtype  # of activations and caches


class DraftModel(Protocol):
    """A proposing model or head. It reads target caches and writes only its own."""

    @property
    def facts(self) -> DraftFacts: ...

    @property
    def column_ids(self) -> Tensor | None:
        """[columns] int64 target id of each logit column; None: columns are target ids (EGL-8)."""
        ...

    def new_caches(self, options: CacheOptions) -> list[LayerCache | None]: ...

    def condition(self, taps: Tensor) -> Tensor:
        """Map `[n, taps_size]` rows of the target's conditioning to `[n, step_size]`.

        Applied once, when rows are reported; the identity for heads that are fed as they come.
        """
        ...

    def forward(self, batch: Batch, target_caches: Caches, draft_caches: Caches) -> Forward:
        """One step; `batch.conditioning` is what the rows are drafted from."""
        ...

    def unembed(self, hidden: Tensor) -> Tensor: ...


@runtime_checkable
class BlockDraft(DraftModel, Protocol):
    """A draft that fills a whole block in one forward (spec 03 BLK)."""

    @property
    def block_size(self) -> int: ...

    @property
    def mask_token(self) -> int: ...
