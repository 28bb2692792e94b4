"""What a runner's prefix cache holds: the live conversation, and stored ones as a trie (02 STR)."""

from forerun.protocol.requests import Struct


class CacheNode(Struct):
    """A node of the trie: tokens that conversations share, from `start` to `end` of each.

    A conversation is a way down; where there is more than one way on, conversations part.
    """

    depth: int  # 0 for the beginning of a conversation
    start: int
    end: int
    bytes: int  # of what is stored for it
    age_seconds: float  # since it, or one further down, was used last
    active: bool  # on the way of the live conversation
    frontier: bool  # where the live caches end
    user: bool  # ends a little before a prompt's end: is kept apart from the node after it
    lazy: bool  # what it holds stands in the live caches and takes no memory of its own
    complete: bool  # a request can go on from its end; else from an earlier one's
    text: str  # how it begins and ends, on one line, without what the template adds


class CacheReport(Struct):
    """`nodes` are depth first. Sizes are bytes; `budget` bounds `snapshots`."""

    context: int  # tokens
    budget: int
    snapshots: int
    live_tokens: int
    live_bytes: int  # of these tokens
    freed_bytes: int  # by the request that this answers
    as_of_seconds: float  # how old all of this is: 0 unless the model is answering
    nodes: list[CacheNode]
