"""What a runner answers: a stream of events that ends with exactly one `Done` or `Failed`."""

from forerun.protocol.requests import Struct, ToolCall


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class LogprobEntry(Struct):
    """One generated token: its text, its exact bytes, and its rivals, most likely first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob] = []


class DraftPosition(Struct):
    """How often the draft of one place in a round was compared with the target, and accepted."""

    accepted: int
    observed: int


class DraftDepth(Struct):
    """Tokens drafted a round, over one of up to eight equal spans of an answer."""

    mean: float
    largest: int


class Drafting(Struct):
    """What the drafter of an answer did; rounds that drafted nothing are counted too."""

    drafter: str
    rounds: int
    drafted: int
    accepted: int
    positions: list[DraftPosition] = []  # of a round's first draft, its second, ...
    depths: list[DraftDepth] = []  # over time


class Figures(Struct):
    """Counts and durations of a finished request."""

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prompt_seconds: float
    generation_seconds: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafting: Drafting | None = None
    thinking_tokens: int = 0  # of the generated ones, those of chunks that hold thinking
    load_seconds: float = 0.0
    first_token_seconds: float = 0.0  # from the request's arrival at the runner


class Progress(Struct, tag="progress"):
    """`processed` of `total` prompt tokens are evaluated."""

    processed: int
    total: int


class Chunk(Struct, tag="chunk"):
    """What is final: whole characters, no stop string or tag of a channel, no part of one.

    Inside a chunk thinking comes first, then text, then calls. A call comes whole, once.
    """

    thinking: str = ""
    text: str = ""
    tool_calls: list[ToolCall] = []
    tokens: list[int] = []
    logprobs: list[LogprobEntry] = []


class Done(Struct, tag="done"):
    """The end of a complete answer, and what it took."""

    reason: str  # stop or length; of a request without a prompt, load or unload
    figures: Figures
    context_ids: list[int] = []  # of prompt and answer, where the request wants them


class Failed(Struct, tag="failed"):
    """`status` is the HTTP status that an API door answers with."""

    status: int
    message: str


Event = Progress | Chunk | Done | Failed


class Tokens(Struct):
    tokens: list[int]


class Text(Struct):
    text: str


class Embeddings(Struct):
    vectors: list[list[float]]
    prompt_tokens: int
