"""Which of two drafters proposes, where both could (decision 0019)."""

from forerun.speculation.trials import Trials


class Contest:
    """The one that is expected to be faster does, and now and then the other, lest it be forgotten.

    It belongs to a loaded model and outlives requests.
    """

    def __init__(self) -> None:
        self._second_leads = False
        self._trials = Trials()

    def second(self, first: float | None, second: float | None) -> bool:
        """Whether the second one proposes.

        first, second  their speeds, tokens a second; None: not known yet, so that one is tried
        """
        if first is None or second is None:
            return first is not None
        leads = second > first
        if leads != self._second_leads:
            self._second_leads = leads
            self._trials.restart()
        if not self._trials.due():
            return leads
        self._trials.put_off()
        return not leads
