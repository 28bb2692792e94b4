"""Where the end of a growing sequence occurred before: its longest such suffix (LKP-2, LKP-3).

A suffix automaton (Blumer et al. 1985, https://doi.org/10.1016/0304-3975(85)90157-4) that knows no
suffix shorter than a given length: all those are one state, the root, which is left by as many
tokens at once. Most ends of an ordinary text are new there, and cost one entry of a dictionary.
"""

import math
from collections.abc import Sequence

_ROOT = 0


class SuffixIndex:
    """Appending costs amortised constant time, whatever the sequence.

    A *state* is a set of suffixes that occurred with the same ends. Every end of the sequence has
    one, of which the whole sequence up to there is a member. A *link* leads to the state of the
    longest suffix that has more ends; so the last state's link is what occurred earlier.

    The latest end of a state is found lazily. An end counts for its state and all that links lead
    to from there, but is entered there when somebody asks, the newest end first, each only as far
    as no newer one has come. While the sequence goes on as it did behind the end last found, the
    answer is that end, moved on, and nothing is entered. That leaves less than one entry a token in
    periodic text, a few in ordinary text, and as many as the root of its length at the very worst.
    """

    def __init__(self, shortest: int) -> None:
        """`shortest`: tokens that a suffix has at least."""
        assert shortest > 0, shortest
        self.tokens: list[int] = []  # the sequence. Read by others, written by `extend`
        self._shortest = shortest
        self._from_root: dict[tuple[int, ...], int] = {}
        self._next: list[dict[int, int] | None] = [None]  # None: see `_following`
        self._lengths = [shortest - 1]  # tokens of each state's longest suffix
        self._links = [_ROOT]
        self._latest = [0]  # the last end entered for each state
        self._states = [_ROOT] * shortest  # the state of each end
        self._entered = 0  # ends up to this one are entered
        self._found = 0  # the answer for the sequence as it is; 0: not asked
        self._agreeing = 0  # tokens of the suffix that it is the answer for

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what comes next in the sequence."""
        for token in tokens:
            self._append(token)

    def catch_up(self) -> None:
        """Do at once what the next to ask would have to wait for: milliseconds in a long text."""
        self._enter(max(0, len(self.tokens) - 1))

    def earlier(self) -> int | None:
        """Where the longest suffix that occurred earlier ended, the last time: tokens up to there.

        None: no suffix of the shortest length occurred earlier.
        """
        if not self._found:
            link = self._links[self._states[-1]]
            if link == _ROOT:
                return None
            self._enter(len(self.tokens) - 1)
            self._found, self._agreeing = self._latest[link], self._lengths[link]
        return self._found

    @property
    def agreeing(self) -> int:
        """Tokens of the longest suffix that occurred earlier; 0: none did."""
        return 0 if self.earlier() is None else self._agreeing

    def continuation(self, most: int) -> list[int]:
        """The `most` tokens, one at least, that follow if the sequence goes on as it did there.

        One after the other: a token that is taken in as foretold leads to the same end, moved on.
        So where the known ones run out, the foretold ones go on as they began. Empty: it did not
        occur earlier.
        """
        end = self.earlier()
        if end is None:
            return []
        known = self.tokens[end : end + most]
        return (known * math.ceil(most / len(known)))[:most]

    def _append(self, token: int) -> None:
        tokens, found = self.tokens, self._found
        if found:
            self._found = found + 1 if tokens[found] == token else 0
            self._agreeing += 1  # a longer one would have been longer by a token before
        tokens.append(token)
        if len(tokens) < self._shortest:
            return
        above = self._links[self._states[-1]]
        state = self._new(len(tokens), None, _ROOT, 0)
        self._states.append(state)
        self._links[state] = self._linked(above, token, state)

    def _new(self, length: int, following: dict[int, int] | None, link: int, latest: int) -> int:
        self._lengths.append(length)
        self._next.append(following)
        self._links.append(link)
        self._latest.append(latest)
        return len(self._lengths) - 1

    def _linked(self, above: int, token: int, state: int) -> int:
        """Lead from `above` and what it links to on to the new state; what that one links to."""
        while above != _ROOT:
            following = self._following(above)
            known = following.get(token)
            if known is not None:
                return self._divided(above, token, known)
            following[token] = state
            above = self._links[above]
        known = self._from_root.setdefault(self._last(), state)
        return _ROOT if known == state else self._divided(_ROOT, token, known)

    def _divided(self, above: int, token: int, known: int) -> int:
        """The part of `known` that has just ended once more: its suffixes up to `above`'s and one.

        Longer ones have not, and from now on are a state without them.
        """
        length = self._lengths[above] + 1
        if self._lengths[known] == length:
            return known
        following = dict(self._following(known))
        part = self._new(length, following, self._links[known], self._latest[known])
        self._links[known] = part
        while above != _ROOT:
            following = self._following(above)
            if following.get(token) != known:
                return part
            following[token] = part
            above = self._links[above]
        if self._from_root[self._last()] == known:
            self._from_root[self._last()] = part
        return part

    def _following(self, state: int) -> dict[int, int]:
        """Which states follow by which tokens.

        What only an end had for its state is followed by the sequence's next token and nothing
        else. That is most states, so it is written down when somebody looks.
        """
        following = self._next[state]
        if following is None:
            end = self._lengths[state]
            following = self._next[state] = {self.tokens[end]: self._states[end + 1]}
        return following

    def _last(self) -> tuple[int, ...]:
        return tuple(self.tokens[-self._shortest :])

    def _enter(self, last: int) -> None:
        """Enter the ends up to `last`."""
        latest, links = self._latest, self._links
        for end in range(last, self._entered, -1):
            state = self._states[end]
            while state != _ROOT and latest[state] < end:
                latest[state] = end
                state = links[state]
        self._entered = last
