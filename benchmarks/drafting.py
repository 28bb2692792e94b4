"""Who answers in `speculation.py`: a service in a process of its own, asked prompt by prompt."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from benchmarks.contenders import Ours, served
from benchmarks.prompt_sets import Turn
from forerun.protocol.events import Chunk, Done, Drafting, Figures
from forerun.protocol.requests import CompletionRequest, Message

if TYPE_CHECKING:
    from forerun.contract.drafter import DraftRequest, Proposal
    from forerun.runner.service import Service

WRONG = "model"  # what a request calls the drafter that is always wrong
EARLY = 64  # tokens of a fresh process after which its steady speed is taken


@dataclass(frozen=True, slots=True)
class Ask:
    """A conversation, how it is to be answered, and what is to happen before."""

    turns: tuple[Turn, ...]
    draft: str  # the option
    options: dict[str, float] = field(default_factory=dict)
    ignore_eos: bool = False
    forget: bool = False  # drop what is cached of conversations first


@dataclass(frozen=True, slots=True)
class Answer:
    """Ids, and what they took. Times are since decoding began; `arrived` has one a token."""

    tokens: tuple[int, ...]
    arrived: tuple[float, ...]
    cached: int  # tokens of the prompt that were
    seconds: float
    drafting: Drafting | None

    @property
    def speed(self) -> float:
        """Tokens a second, prefill taken out."""
        return len(self.tokens) / self.seconds

    def speed_between(self, first: int, last: int) -> float:
        """Of the tokens after the first `first` of them, up to number `last`."""
        assert last <= len(self.tokens), f"{last} tokens were wanted, {len(self.tokens)} came"
        start = self.arrived[first - 1] if first else 0.0
        return (last - first) / (self.arrived[last - 1] - start)


def answering_contender(given: Ours) -> Callable[[Ask], Answer]:
    """The service as it is served."""
    service = served(given)
    return lambda ask: answer(service, ask)


def wrong_contender(given: Ours) -> Callable[[Ask], Answer]:
    """The same with one drafter, whose every draft is refused."""
    from forerun.runner import loading
    from forerun.speculation.bound import BoundDrafters

    load = loading._load_engine
    bound = BoundDrafters.of(primary=WrongDrafter())
    loading._load_engine = lambda *given: replace(load(*given), drafters=bound)
    return answering_contender(given)


def answer(service: "Service", ask: Ask) -> Answer:
    """One answer, with the time at which each of its tokens was there."""
    if ask.forget:
        service.clear_cache()
    request = CompletionRequest(
        messages=[Message(role=role, content=text) for role, text in ask.turns],
        options={**ask.options, "draft": ask.draft},
        ignore_eos=ask.ignore_eos,
    )
    tokens: list[int] = []
    arrived: list[float] = []
    figures: Figures | None = None
    for event in service.complete(request):
        if isinstance(event, Chunk):
            tokens += event.tokens
            arrived += [time.perf_counter()] * len(event.tokens)
        elif isinstance(event, Done):
            figures = event.figures
    assert figures is not None, "the answer broke off"
    begun = time.perf_counter() - figures.generation_seconds
    return Answer(
        tokens=tuple(tokens),
        arrived=tuple(at - begun for at in arrived),
        cached=figures.cached_tokens,
        seconds=figures.generation_seconds,
        drafting=figures.drafting,
    )


class WrongDrafter:
    """Proposes a token that no text has, for nothing: all that it costs is its verification.

    It holds nothing of a request, so it is its own session.
    """

    name = WRONG
    caches = ()
    look_ahead = 0
    draft_limit = 0
    grades = 1
    needs_rows = False
    token = 3  # of SmolLM2: marks a repository in training data, and is in no answer

    def open(self, request: "DraftRequest") -> "WrongDrafter":
        del request
        return self

    def committed(self, *_told: object) -> None:
        """Nothing that is told makes it better."""

    def settle(self, next_token: int) -> None:
        """Nothing waits."""

    def grade(self, current: int) -> int:
        """It always has something to say."""
        del current
        return 0

    def propose(self, current: int, most: int) -> "Proposal":
        import torch

        from forerun.contract.drafter import Proposal
        from forerun.sampling.distribution import Distribution

        del current
        drafts = (self.token,) * most
        tokens = torch.tensor(drafts)
        return Proposal(tokens, Distribution(torch.ones(most, 1), tokens[:, None]), drafts)

    def close(self) -> None:
        """Nothing is held."""


def by_position(answers: Sequence[Answer]) -> list[tuple[int, int]]:
    """(accepted, observed) of a round's first draft, second, ..., over all answers."""
    sums: list[tuple[int, int]] = []
    for each in answers:
        positions = [] if each.drafting is None else each.drafting.positions
        sums += [(0, 0)] * (len(positions) - len(sums))
        for place, position in enumerate(positions):
            accepted, observed = sums[place]
            sums[place] = (accepted + position.accepted, observed + position.observed)
    return sums


def rates(positions: Sequence[tuple[int, int]], *, least: int = 20) -> list[float]:
    """Acceptance by position, as far as it was observed `least` times."""
    found = []
    for accepted, observed in positions:
        if observed < least:
            break
        found.append(accepted / observed)
    return found
