"""Plain decoding: one forward a token (spec 05 DEC-7).

With a look-ahead of 1 the forward and the draw after a token are under way before the host has
read that token, so that an asynchronous device never waits for the host.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.base.errors import DamagedModelError, ForerunError
from forerun.contract.batch import Batch
from forerun.contract.decoder import Run
from forerun.contract.model import Forward, RankedLogits
from forerun.engine.follower import Follower
from forerun.engine.loaded import LoadedModel
from forerun.sampling.logprobs import Logprobs
from forerun.sampling.refusals import NoAllowedTokenError
from forerun.sampling.sampler import Sampled


class PlainDecoder:
    """Decodes one slot from the last token of its prompt on.

    The drafter is told of each token once it has been forwarded and the host knows it, whichever
    comes last. That is within one call of `next`, so nobody holds a row past the next forward.
    """

    def __init__(
        self, loaded: LoadedModel, slot: int, prompt: Sequence[int], follower: Follower
    ) -> None:
        self._loaded = loaded
        self._slot = slot
        self._follower = follower
        self._told = len(prompt) - 1  # position of the token that the drafter is told of next
        self._known: int | None = prompt[-1]  # that token, once the host knows it
        self._written: Forward | None = None  # its forward, once there was one
        self._device = loaded.model.facts.device
        self._ranked = loaded.model if isinstance(loaded.model, RankedLogits) else None
        self._current: Tensor | Sequence[int] = prompt[-1:]  # drawn tokens stay on the device
        self.position = len(prompt) - 1  # where the current token will be written
        self._ahead: _Drawn | None = None  # drawn and not handed out
        self._refused: ForerunError | None = None  # what the next call has to raise

    def next(self, remaining: int) -> Run:
        """One token. The last one of a budget is not run ahead of.

        Raises NoAllowedTokenError or DamagedModelError after the last token that could be drawn was
        handed out, which may have ended the text.
        """
        if self._refused is not None:
            raise self._refused
        drawn, self._ahead = self._ahead or self._step(), None
        if self._loaded.look_ahead and remaining > 1:
            try:
                self._ahead = self._step()
            except (NoAllowedTokenError, DamagedModelError) as error:
                self._refused = error
        return self._read(drawn)

    @property
    def current(self) -> int:
        """The token that the next forward writes, where nothing is in flight."""
        assert self._known is not None, "the current token has been forwarded"
        return self._known

    @property
    def in_flight(self) -> bool:
        """A token is drawn that has not been handed out, or the lack of one was found."""
        return self._ahead is not None or self._refused is not None

    def hand_over(self) -> Run | None:
        """The token in flight, which is current from now on; None: the last one handed out is.

        Nothing is forwarded. Raises as `next` does (03 RND-3).
        """
        if self._refused is not None:
            raise self._refused
        drawn, self._ahead = self._ahead, None
        return None if drawn is None else self._read(drawn)

    def move(self, current: int | None, position: int) -> None:
        """Go on with `current` at `position`: what is before it was written by others, and told.

        None: no token is allowed there, which the next call raises.
        """
        self._known, self._told, self.position = current, position, position
        if current is None:
            self._refused = NoAllowedTokenError(self._slot)
        else:
            self._current = (current,)

    def drain(self) -> tuple[int, ...]:
        drawn, self._ahead = self._ahead, None
        return () if drawn is None else self._read(drawn).tokens

    def close(self) -> None:
        """The target's caches hold each token whose successor was drawn; the drafter's follow.

        What was in flight has been drained by then. Where no successor was allowed, the last
        token's pair stays open: nothing can close it.
        """
        if self._known is not None:
            self._follower.settle(self._known)  # RND-15

    def drafting(self) -> None:
        """Nothing was drafted."""

    def _read(self, drawn: "_Drawn") -> Run:
        run = drawn.run()
        self._known = run.tokens[0]
        self._tell()
        return run

    def _tell(self) -> None:
        token, forward, position = self._known, self._written, self._told
        if token is not None and forward is not None:
            self._known = self._written = None  # told once, even if the drafter fails over it
            self._told += 1
            self._follower.committed([token], forward, position)

    def _step(self) -> "_Drawn":
        """Forward the current token and draw its successor, without waiting for either."""
        loaded = self._loaded
        batch = Batch.of(self._current, self.position, self._device)
        forward = self._written = loaded.model.forward(batch, loaded.caches)
        self._tell()
        self.position += 1
        sampled = self._sampled(forward.hidden[:, -1])
        self._current = sampled.tokens
        options = loaded.sampler.options(self._slot)
        return _Drawn(sampled, options.top_logprobs if options.logprobs else None)

    def _sampled(self, hidden: Tensor) -> Sampled:
        """The token for the current position, from no more logits than decide it."""
        model, sampler = self._loaded.model, self._loaded.sampler
        slots, positions = [self._slot], [self.position]
        count = None if self._ranked is None else sampler.deciding(self._slot)
        if self._ranked is not None and count is not None:
            best = self._ranked.best(hidden, count)
            if best is not None:
                return sampler.sample_best(slots, best, positions)
        return sampler.sample(slots, model.unembed(hidden), positions)


class _Drawn:
    """A drawn token on its way to the host."""

    def __init__(self, sampled: Sampled, top_logprobs: int | None) -> None:
        """`top_logprobs` None: the request wants no log-probabilities."""
        self._top = top_logprobs
        self._token = sampled.tokens.to("cpu", non_blocking=True)  # pinned, where it matters
        self._logprobs: Logprobs | None = None
        if sampled.logprobs is not None and top_logprobs is not None:
            self._logprobs = sampled.logprobs.to(torch.device("cpu"))
        self._copied: torch.Event | None = None
        if sampled.tokens.device.type != "cpu":
            self._copied = torch.Event(sampled.tokens.device)
            self._copied.record()

    def run(self) -> Run:
        """The token, once the copies have arrived."""
        if self._copied is not None:
            self._copied.synchronize()
        token = int(self._token)
        if self._logprobs is None or self._top is None:
            return Run((token,))
        return Run((token,), self._logprobs.entries((token,), self._top))
