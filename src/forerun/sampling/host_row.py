"""One row of few scores in plain Python, for a CPU: no tensor between the scores and the token.

A tensor operation takes 1 us in a loop, and 5 to 8 us behind a model's step, which leaves nothing
of it in the caches; a draw takes fifty of them. What is here has the meaning of `filters`,
`penalties` and `noise`. Numbers are fp32 where they enter and leave, and doubles between.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from struct import Struct

from forerun.sampling.noise import LARGEST_UNIFORM, host_hash
from forerun.sampling.options import SamplingOptions

MOST_COLUMNS = 128  # of rows that are looked at here, whatever the number of rows
NO_TOKEN = -1  # what a row without any probability draws (ORD-9)
LEAST_SUM = 1e-20  # ORD-5
_LEAST_SCORE = -3.4028234663852886e38  # the lowest finite fp32
_FLOAT = Struct("f")


def cut(scores: Sequence[float], options: SamplingOptions) -> list[float]:
    """Probabilities after everything behind top-k, of scores that descend; sampled, not greedy."""
    top, temperature = max(scores[0], _LEAST_SCORE), options.temperature
    probs = _normalised([math.exp((score - top) / temperature) for score in scores])
    if options.top_p < 1:
        probs = _first_p(probs, options.top_p)
    if options.min_p > 0:
        least = options.min_p * probs[0]
        probs = [prob if prob >= least else 0.0 for prob in probs]
    return array("f", _normalised(probs)).tolist()


def draw(probs: Sequence[float], ids: Sequence[int], key: int) -> int:
    """The id of the highest log-probability plus Gumbel noise, of equal ones the smallest (ORD-6).

    key   of `draw_key`
    """
    likely = [(prob, token) for prob, token in zip(probs, ids, strict=True) if prob > 0]
    if len(likely) < 2:  # a point mass needs no noise (SED-5)
        return likely[0][1] if likely else NO_TOKEN
    _, token = min((_gumbel_cost(key, token) - math.log(prob), token) for prob, token in likely)
    return token


def uniform(key: int) -> float:
    """`noise.row_uniform` of one key."""
    return min(_fp32(host_hash(key, 0) >> 32 | 1) * 2**-32, LARGEST_UNIFORM)


def deciding(options: SamplingOptions) -> int | None:
    """How many of the best scores decide a draw; None: all may, or so many that tensors are faster.

    Scores are those after penalties.
    """
    if options.logit_bias or options.raises:
        return None
    count = 1 if options.greedy else options.top_k
    return count if 0 < count <= MOST_COLUMNS else None


def probabilities(
    scores: list[float], ids: list[int], counts: Mapping[int, int], options: SamplingOptions
) -> tuple[list[float], list[int]]:
    """Probabilities and ids of what may be drawn, from the largest scores before penalties.

    scores   descending, of equal ones the smaller id first: `deciding`, and one more for each token
             of the window
    counts   how often each token occurs in the window
    """
    wanted = 1 if options.greedy else options.top_k
    if counts:
        scores, ids = _penalised(scores, ids, counts, options, wanted)
    if options.greedy:
        return [float(scores[0] > -math.inf)], ids[:1]
    return cut(scores[:wanted], options), ids[:wanted]


def _penalised(
    scores: list[float],
    ids: list[int],
    counts: Mapping[int, int],
    options: SamplingOptions,
    wanted: int,
) -> tuple[list[float], list[int]]:
    """At least `wanted` best after the penalties: descending, of equal ones the smaller id first.

    Whatever comes behind as many that nothing lowers is behind them still (`Sampler.deciding`).

    Each step is rounded to fp32 as the tensors' steps are: doubles hold products of two fp32
    exactly, and sums of two well enough that the second rounding changes nothing.
    """
    row: list[tuple[float, int]] = []
    for score, token in zip(scores, ids, strict=True):
        if token in counts:
            row.append((-_lowered(score, counts[token], options), token))
            continue
        row.append((-score, token))
        wanted -= 1
        if not wanted:
            break
    row.sort()
    return [-negative for negative, _ in row], [token for _, token in row]


def _lowered(score: float, count: int, options: SamplingOptions) -> float:
    """PEN-2 to PEN-4."""
    factor = options.repeat_penalty
    score = _fp32(score * _fp32(factor if score < 0 else 1 / factor))
    score = _fp32(score - _fp32(options.presence_penalty))
    if options.frequency_penalty:
        score = _fp32(score - _fp32(_fp32(options.frequency_penalty) * count))
    return score


def _first_p(probs: list[float], limit: float) -> list[float]:
    """The entries that less than `limit` precedes; no limit of 0 comes here (ORD-3)."""
    preceding = 0.0
    for place, prob in enumerate(probs):
        if preceding >= limit:
            return probs[:place] + [0.0] * (len(probs) - place)
        preceding += prob
    return probs


def _normalised(weights: list[float]) -> list[float]:
    total = max(sum(weights), LEAST_SUM)
    return [weight / total for weight in weights]


def _gumbel_cost(key: int, token: int) -> float:
    """Gumbel noise with its sign changed: the logarithm of an exponential number (SED-1)."""
    uniform = _fp32(host_hash(key, token) >> 32 | 1) * 2**-32
    return math.log(-math.log1p(-min(uniform, LARGEST_UNIFORM)))


def _fp32(value: float) -> float:
    """Rounded; past the largest it is infinite."""
    try:
        rounded: tuple[float] = _FLOAT.unpack(_FLOAT.pack(value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded[0]
