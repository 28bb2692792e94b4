"""Finds stop strings in text that arrives in pieces (spec 05 STP-1, STP-2)."""

from collections.abc import Sequence

from forerun.base.errors import RequestError


class StopMatcher:
    """Ends a text where a stop string first appears, whatever pieces it comes in.

    Of several, the one that is complete first counts; of those, the one that begins first. What is
    given out is the text before it; the end of a text that may yet become a stop is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises RequestError for an empty stop string, which would end every text at once."""
        if not all(stops):
            raise RequestError("stop holds an empty string; leave it out")
        self._stops = tuple(stops)
        self._beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop was found. Nothing follows a stop."""
        assert not self._stopped, "text after a stop string"
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stops if stop in text]
        if found:
            end, negative_length = min(found)
            self._held, self._stopped = "", True
            return text[: end + negative_length], True
        certain = len(text) - self._uncertain(text)
        self._held = text[certain:]
        return text[:certain], False

    def finish(self) -> str:
        """What was held back; no stop string came of it."""
        rest, self._held = self._held, ""
        return rest

    def _uncertain(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0
