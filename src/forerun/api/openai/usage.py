"""What an answer took, in OpenAI's words (spec 08 OAI-4)."""

from forerun.api.bodies import WireStruct
from forerun.protocol.events import Figures


class PromptDetails(WireStruct):
    cached_tokens: int


class CompletionDetails(WireStruct):
    """Drafted tokens that became the answer, and those that did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(WireStruct):
    """Without `completion_tokens_details` nothing was drafted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None


def usage_of(figures: Figures) -> Usage:
    """The figures of a finished answer."""
    details = None
    if figures.drafted_tokens:
        details = CompletionDetails(
            accepted_prediction_tokens=figures.accepted_tokens,
            rejected_prediction_tokens=figures.drafted_tokens - figures.accepted_tokens,
        )
    return Usage(
        prompt_tokens=figures.prompt_tokens,
        completion_tokens=figures.generated_tokens,
        total_tokens=figures.prompt_tokens + figures.generated_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=figures.cached_tokens),
        completion_tokens_details=details,
    )
