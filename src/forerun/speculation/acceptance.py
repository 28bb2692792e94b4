"""How often the drafts of each position are accepted once those before them are (DEP-4)."""

_SHARE = 0.1  # of the distance to a new outcome that a rate moves by
_ENOUGH = 10  # outcomes after which a rate is trusted


class Acceptance:
    """Rates by position in a round, from 1, each conditional on the drafts before it."""

    def __init__(self) -> None:
        self._rates: list[float] = []
        self._outcomes: list[int] = []

    def add(self, accepted: int, observed: int) -> None:
        """Of a round's first `observed` drafts the first `accepted` were accepted.

        Positions behind the first refusal say nothing: they saw a text that was not to be.
        """
        assert 0 <= accepted <= observed, (accepted, observed)
        for index in range(min(observed, accepted + 1)):
            self._add(index, 1.0 if index < accepted else 0.0)

    @property
    def trusted(self) -> int:
        """The deepest position with a trusted rate; each one before it has one too."""
        depth = 0
        for outcomes in self._outcomes:
            if outcomes < _ENOUGH:
                break
            depth += 1
        return depth

    def rates(self) -> tuple[float, ...]:
        """Of the trusted positions, in order."""
        return tuple(self._rates[: self.trusted])

    def expected(self, deepest: int) -> list[float]:
        """Committed tokens of a round of each depth from 0 to `deepest` (DEP-5).

        A position without a trusted rate has the rate of the deepest one with it, else 1.
        """
        rates = self.rates()
        last = rates[-1] if rates else 1.0
        survives, total, totals = 1.0, 1.0, [1.0]
        for index in range(deepest):
            survives *= rates[index] if index < len(rates) else last
            total += survives
            totals.append(total)
        return totals

    def _add(self, index: int, outcome: float) -> None:
        if index == len(self._rates):
            self._rates.append(outcome)
            self._outcomes.append(1)
            return
        self._rates[index] += _SHARE * (outcome - self._rates[index])
        self._outcomes[index] += 1
