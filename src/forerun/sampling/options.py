"""What a request asks of the sampler: one frozen value, checked, layered and normalised (OPT)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from forerun.base.errors import RequestError
from forerun.base.options import OPTIONS, OptionValue, check_option, check_options

GREEDY_BELOW = 1e-5  # ORD-8: smaller temperatures mean argmax
# Far past any use; beyond it a penalised score, or the divisor of a blocked one, overflows fp32.
EXTREME = 1e30


def _number(name: str, options: Mapping[str, OptionValue]) -> float:
    value = options.get(name, OPTIONS[name].default)
    assert isinstance(value, int | float), f"option {name} is {value!r}"
    return float(value)


def _whole(name: str, options: Mapping[str, OptionValue]) -> int:
    value = options.get(name, OPTIONS[name].default)
    assert isinstance(value, int), f"option {name} is {value!r}"
    return value


def _bias(options: Mapping[str, OptionValue]) -> tuple[tuple[int, float], ...]:
    value = options.get("logit_bias") or {}
    assert isinstance(value, dict), f"option logit_bias is {value!r}"
    return tuple(value.items())


def _draft(options: Mapping[str, OptionValue]) -> str:
    value = options.get("draft", OPTIONS["draft"].default)
    assert isinstance(value, str), f"option draft is {value!r}"
    return value


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Defaults and ranges are those of `base.options`; a value outside them is a RequestError.

    A negative seed means unseeded. `draft` names the drafter (03 DRF-8); the sampler carries it.
    """

    temperature: float = _number("temperature", {})
    top_k: int = _whole("top_k", {})
    top_p: float = _number("top_p", {})
    min_p: float = _number("min_p", {})
    repeat_last_n: int = _whole("repeat_last_n", {})
    repeat_penalty: float = _number("repeat_penalty", {})
    presence_penalty: float = _number("presence_penalty", {})
    frequency_penalty: float = _number("frequency_penalty", {})
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = _whole("seed", {})
    draft: str = _draft({})
    logprobs: bool = False
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name == "logit_bias":
                check_option(field.name, dict(self.logit_bias))
            elif field.name in OPTIONS:
                check_option(field.name, getattr(self, field.name))
        if self.top_logprobs < 0:
            raise RequestError(f"top_logprobs is {self.top_logprobs}; it must be 0 or more")

    @classmethod
    def from_layers(
        cls, *layers: Mapping[str, OptionValue], logprobs: bool = False, top_logprobs: int = 0
    ) -> "SamplingOptions":
        """The defaults under `layers`, later ones winning: model parameters, then the request's.

        Options that are not the sampler's are left to their owners (OPT-4).
        """
        merged: dict[str, OptionValue] = {}
        for layer in layers:
            merged.update(check_options(dict(layer)))
        return cls(
            temperature=_number("temperature", merged),
            top_k=_whole("top_k", merged),
            top_p=_number("top_p", merged),
            min_p=_number("min_p", merged),
            repeat_last_n=_whole("repeat_last_n", merged),
            repeat_penalty=_number("repeat_penalty", merged),
            presence_penalty=_number("presence_penalty", merged),
            frequency_penalty=_number("frequency_penalty", merged),
            logit_bias=_bias(merged),
            seed=_whole("seed", merged),
            draft=_draft(merged),
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )

    @property
    def seeded(self) -> bool:
        return self.seed >= 0

    @property
    def greedy(self) -> bool:
        """One token is left whatever the noise: the argmax, of equal scores the smaller id."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1 or self.top_p == 0

    @property
    def penalised(self) -> bool:
        """Whether any penalty can change a score; a neutral one needs no history."""
        neutral = self.repeat_penalty == 1 and not self.presence_penalty
        return self.repeat_last_n != 0 and not (neutral and not self.frequency_penalty)

    @property
    def raises(self) -> bool:
        """Whether a penalty can make a score larger than it was."""
        negative = self.presence_penalty < 0 or self.frequency_penalty < 0
        return self.penalised and (negative or self.repeat_penalty < 1)

    def normalised(self, *, vocab_size: int, context_length: int) -> "SamplingOptions":
        """The same request with special values resolved (OPT-5); normalising twice changes nothing.

        Afterwards `repeat_last_n` is the history's capacity, 0 when no penalty is at work.
        Raises RequestError for a bias on a token that the vocabulary does not have (OPT-6).
        """
        for token, _ in self.logit_bias:
            if token >= vocab_size:
                raise RequestError(
                    f"logit_bias names token {token}; this model's tokens are 0 to {vocab_size - 1}"
                )
        window = self.repeat_last_n if self.repeat_last_n >= 0 else context_length
        penalty = self.repeat_penalty if self.repeat_penalty > 0 else 1.0
        temperature = 0.0 if self.temperature < GREEDY_BELOW else min(self.temperature, EXTREME)
        resolved = replace(
            self,
            temperature=temperature,
            repeat_penalty=min(max(penalty, 1 / EXTREME), EXTREME),
            repeat_last_n=min(window, context_length),
            seed=max(self.seed, -1),
        )
        if resolved.penalised:
            return resolved
        return replace(
            resolved,
            repeat_last_n=0,
            repeat_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
        )

    def recipe(self) -> "SamplingOptions":
        """What of it decides how scores become a distribution: equal recipes share one pass."""
        return replace(self, seed=-1, draft=_draft({}), logprobs=False, top_logprobs=0)
