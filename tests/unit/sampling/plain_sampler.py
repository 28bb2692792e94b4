"""The sampler as plain Python over lists and dicts, which the tests compare with.

It keeps every token of a slot and works in double precision. `Margin` tells how close a decision
was, so that a test can leave out cases that rounding alone decides.
"""

import math
import struct
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from forerun.sampling.options import SamplingOptions

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z &= MASK
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def plain_bits(seed: int, position: int, purpose: int, token: int) -> int:
    key = mix(seed + GOLDEN)
    key = mix(key + GOLDEN * (position + 1))
    key = mix(key + GOLDEN * (purpose + 1))
    return mix(key + GOLDEN * (token + 1))


def plain_uniform(bits: int) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", 2 * (bits >> 33) + 1))
    return min(rounded * 2**-32, 1 - 2**-24)


def plain_gumbel(bits: int) -> float:
    return -math.log(-math.log1p(-plain_uniform(bits)))


@dataclass
class Margin:
    """The smallest distance of any decision from going the other way."""

    least: float = math.inf

    def near(self, *distances: float) -> None:
        self.least = min(self.least, *(abs(d) for d in distances if not math.isnan(d)), self.least)


def plain_scores(
    logits: dict[int, float], options: SamplingOptions, history: list[int], allowed: set[int]
) -> dict[int, float]:
    """Scores by token: mask, bias, penalties. `history` is everything the slot has seen."""
    bias = dict(options.logit_bias)
    scores = {t: x + bias.get(t, 0.0) if t in allowed else -math.inf for t, x in logits.items()}
    window = history if options.repeat_last_n < 0 else history[-options.repeat_last_n :]
    counts = Counter(window if options.repeat_last_n else [])
    for token, count in counts.items():
        if token in scores:
            score = scores[token]
            penalty = options.repeat_penalty
            score = score * penalty if score < 0 else score / penalty
            score -= options.presence_penalty
            scores[token] = score - options.frequency_penalty * count
    return scores


def plain_distribution(
    scores: dict[int, float], options: SamplingOptions, margin: Margin | None = None
) -> dict[int, float]:
    """Probability of each token that can be drawn; empty when nothing is allowed."""
    margin = margin or Margin()
    finite = {token: score for token, score in scores.items() if score > -math.inf}
    if not finite:
        return {}
    order = sorted(finite, key=lambda token: (-finite[token], token))
    margin.near(*(finite[a] - finite[b] for a, b in pairwise(order)))
    if options.temperature < 1e-5:
        return {order[0]: 1.0}
    if options.top_k:
        order = order[: options.top_k]
    top = finite[order[0]]
    weights = {token: math.exp((finite[token] - top) / options.temperature) for token in order}
    total = sum(weights.values())
    probs = {token: weight / total for token, weight in weights.items()}
    kept, preceding = {}, 0.0
    for place, token in enumerate(order):
        if place and options.top_p < 1:
            margin.near(preceding - options.top_p)
        if place == 0 or preceding < options.top_p or options.top_p == 1:
            kept[token] = probs[token]
        preceding += probs[token]
    least = options.min_p * max(kept.values())
    if options.min_p:
        margin.near(*(prob - least for prob in kept.values()))
    kept = {token: prob for token, prob in kept.items() if prob >= least and prob > 1e-30}
    total = sum(kept.values())
    return {token: prob / total for token, prob in kept.items()}


def plain_draw(
    probs: dict[int, float], seed: int, position: int, margin: Margin | None = None
) -> int:
    """The target's draw at a position: the argmax of log-probability plus Gumbel noise."""
    keyed = {
        token: math.log(prob) + plain_gumbel(plain_bits(seed, position, 0, token))
        for token, prob in probs.items()
    }
    order = sorted(keyed, key=lambda token: (-keyed[token], token))
    if margin and len(order) > 1:
        margin.near(keyed[order[0]] - keyed[order[1]])
    return order[0]
