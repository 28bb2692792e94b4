"""What a grammar tells the sampler: which tokens may come next (spec 03 GRM, 05 STR).

Torch-free on purpose: a grammar runs in the text plane, and masks cross as packed words in a host
buffer that belongs to the decoder (pinned memory on CUDA).

Laws
1. Bit i of word j of a row is 1 iff token 32 * j + i is allowed there.
2. `fill` never changes the state; only `advance` does, by tokens that were emitted.
3. A stop token is allowed exactly where `accepting` is True.
"""

from collections.abc import Sequence
from typing import Protocol


class TokenConstraint(Protocol):
    """The state of one request's grammar after the text emitted so far."""

    def fill(self, drafts: Sequence[int], words: memoryview) -> int:
        """Write masks for the next token and for the one after each of `drafts`.

        words    writable, format "i", shape [len(drafts) + 1, ceil(vocab / 32)]
        returns  rows written: 1 + the number of leading drafts that are legal; later rows are
                 unreachable and stay as they are (GRM-3)
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """The text went on by `tokens`. An illegal one is an assertion error."""
        ...

    @property
    def accepting(self) -> bool:
        """Whether the text may end here."""
        ...
