"""Which of two drafters proposes, where both could (decision 0019)."""

_FIRST_INTERVAL = 4
_LONGEST_INTERVAL = 512


class Contest:
    """The one that is expected to be faster does, and now and then the other, lest it be forgotten.

    Like a depth (DEP-6), the other is tried at intervals that double while the result stands. It
    belongs to a loaded model and outlives requests.
    """

    def __init__(self) -> None:
        self._second_leads = False
        self._interval = _FIRST_INTERVAL
        self._waited = 0  # rounds since the last trial or change

    def second(self, first: float | None, second: float | None) -> bool:
        """Whether the second one proposes.

        first, second  their speeds, tokens a second; None: not known yet, so that one is tried
        """
        if first is None or second is None:
            return first is not None
        leads = second > first
        if leads != self._second_leads:
            self._second_leads, self._interval, self._waited = leads, _FIRST_INTERVAL, 0
        self._waited += 1
        if self._waited < self._interval:
            return leads
        self._waited, self._interval = 0, min(2 * self._interval, _LONGEST_INTERVAL)
        return not leads
