"""Which cache a layer has, by what it mixes tokens with (CON-11)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from forerun.cache.kv import KVCache
from forerun.cache.recurrent import RecurrentCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape
from forerun.contract.cache import LayerCache
from forerun.contract.model import CacheOptions
from forerun.contract.recurrence import Fold
from forerun.nn.layer_weights import AttentionWeights, DeltaWeights
from forerun.nn.recurrence import state_shape

NewCache = Callable[[CacheOptions], LayerCache]


@dataclass(frozen=True, slots=True)
class Storage:
    """What caches hold, and where."""

    dtype: torch.dtype  # of keys and values
    stream: torch.dtype  # of what layers compute in, and so of raw rows of a convolution
    device: torch.device
    fold: Fold  # of inputs into a recurrent state

    def of(self, mixer: AttentionWeights | DeltaWeights) -> NewCache:
        """Makes a layer's cache. Looks at sizes alone, so that weights may be taken meanwhile."""
        return self._state(mixer) if isinstance(mixer, DeltaWeights) else self._rows(mixer)

    def _rows(self, mixer: AttentionWeights) -> NewCache:
        heads, window = mixer.heads, mixer.window
        shape = RowShape(heads.kv, heads.dim, heads.dim, self.dtype, self.device)
        if window is None:
            return lambda options: KVCache(shape, options.context)
        return lambda options: RotatingCache(shape, window, options.slack)

    def _state(self, mixer: DeltaWeights) -> NewCache:
        shape = state_shape(mixer.heads, mixer.conv_weight, dtype=self.stream)
        fold = self.fold
        return lambda _: RecurrentCache(shape, fold)
