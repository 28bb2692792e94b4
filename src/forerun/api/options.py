"""The options of a request at the doors: known ones checked, load-time ones set apart (08 OPT)."""

from forerun.base.errors import RequestError
from forerun.base.logs import logger
from forerun.base.options import OPTIONS, OptionValue, check_asked
from forerun.base.shown import listed, shown
from forerun.base.units import parse_keep_alive
from forerun.scheduler.runners import LoadOptions

log = logger(__name__)


def read_options(given: dict[str, object] | None) -> dict[str, OptionValue]:
    """Every known option of the native API, checked; unknown ones are named in the log.

    Raises RequestError naming option, value and range, or where the option belongs instead.
    """
    known = {name: value for name, value in (given or {}).items() if name in OPTIONS}
    strange = sorted(set(given or {}) - set(known))
    if strange:
        log.warning("unknown options ignored: %s", listed(strange))
    return check_asked(known)


def load_options(options: dict[str, OptionValue]) -> LoadOptions:
    """What among checked options is fixed when a model is loaded."""
    num_ctx, num_thread = options.get("num_ctx"), options.get("num_thread")
    return LoadOptions(
        num_ctx=num_ctx if isinstance(num_ctx, int) else None,
        num_thread=num_thread if isinstance(num_thread, int) else None,
        device="cpu" if options.get("num_gpu") == 0 else None,
    )


def read_keep_alive(given: object) -> float | None:
    """Seconds, infinite for ever, None if nothing is said (08 SCH-4). RequestError for others."""
    if given is None:
        return None
    if isinstance(given, str | int | float) and not isinstance(given, bool):
        try:
            return parse_keep_alive(given)
        except (ValueError, OverflowError):
            pass
    raise RequestError(
        f"keep_alive is {shown(given)}; it must be a duration such as 5m, a number of seconds, "
        "0 to unload at once or -1 to keep the model"
    )
