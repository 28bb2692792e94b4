"""What an answer took, in OpenAI's words (spec 08 OAI-4)."""

from forerun.api.bodies import WireStruct
from forerun.protocol.events import Drafting, Figures


class PromptDetails(WireStruct):
    cached_tokens: int


class CompletionDetails(WireStruct):
    """Tokens of thinking; drafted tokens that became the answer, and those that did not."""

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(WireStruct):
    """Without `completion_tokens_details` nothing was thought and nothing drafted.

    `drafting` is ours: what the drafter did, in more detail than OpenAI has names for.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None
    drafting: Drafting | None = None


def usage_of(figures: Figures) -> Usage:
    """The figures of a finished answer."""
    details = CompletionDetails(reasoning_tokens=figures.thinking_tokens or None)
    if figures.drafted_tokens:
        details.accepted_prediction_tokens = figures.accepted_tokens
        details.rejected_prediction_tokens = figures.drafted_tokens - figures.accepted_tokens
    return Usage(
        prompt_tokens=figures.prompt_tokens,
        completion_tokens=figures.generated_tokens,
        total_tokens=figures.prompt_tokens + figures.generated_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=figures.cached_tokens),
        completion_tokens_details=None if details == CompletionDetails() else details,
        drafting=figures.drafting,
    )
