"""How often what is not the best is tried all the same (DEP-6)."""

_FIRST_INTERVAL = 4
_LONGEST_INTERVAL = 512


class Trials:
    """Counts rounds between trials: first a few, and twice as many as before after each trial."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """What is best has changed: trials are as frequent as at first."""
        self._interval, self._waited = _FIRST_INTERVAL, 0

    def due(self) -> bool:
        """Count a round; whether it is to be a trial."""
        self._waited = (self._waited + 1) % self._interval
        return self._waited == 0

    def put_off(self) -> None:
        """A trial has changed nothing: the next one comes half as soon."""
        self._interval = min(2 * self._interval, _LONGEST_INTERVAL)

    @property
    def interval(self) -> int:
        return self._interval
