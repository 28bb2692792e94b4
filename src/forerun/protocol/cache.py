"""What a runner's prefix cache holds: the live conversation, and stored ones as a trie (02 STR)."""

from forerun.protocol.requests import Struct


class CacheNode(Struct):
    """A stretch of tokens that conversations share, from `start` to `end` of each.

    A conversation is a way down; where there is more than one way on, conversations part.
    """

    depth: int  # 0 for the beginning of a conversation
    start: int
    end: int
    bytes: int  # of what is stored for it
    age_seconds: float  # since it was used last
    active: bool  # on the way of the live conversation
    frontier: bool  # where the live caches end
    user: bool  # of a prompt's own schedule: it is kept apart from the stretch after it
    lazy: bool  # what it holds stands in the live caches and takes no memory of its own
    complete: bool  # a request can go on from its end; else from an earlier one's
    text: str  # how it begins, on one line


class CacheReport(Struct):
    """`nodes` are depth first. Sizes are bytes; `budget` bounds `snapshots`."""

    context: int  # tokens
    budget: int
    snapshots: int
    live_tokens: int
    live_bytes: int
    freed_bytes: int  # by the request that this answers
    nodes: list[CacheNode]
