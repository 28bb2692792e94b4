"""One request as the engine sees it: token ids in, a sink for token ids out."""

import threading
from dataclasses import dataclass, field

from forerun.contract.sink import TokenSink
from forerun.sampling.options import SamplingOptions


@dataclass(frozen=True, slots=True)
class Job:
    """Made by whoever prepared the request, which has been checked by then."""

    tokens: tuple[int, ...]  # the prompt, at least one
    eos: frozenset[int]  # tokens that end the answer
    sampling: SamplingOptions
    budget: int  # tokens to generate at most; 0 evaluates the prompt and draws nothing
    sink: TokenSink
    cancelled: threading.Event = field(default_factory=threading.Event)  # set from any thread
