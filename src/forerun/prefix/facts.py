"""What the trie looks like from outside: data for people and programs that watch it."""

from dataclasses import dataclass

from forerun.prefix.keys import LookAhead, token_of
from forerun.prefix.trie import Keys, Node

_SHOWN = 24  # tokens of either end of an edge: enough to recognise a conversation


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node."""

    depth: int  # 0: the root
    start: int
    end: int
    owned_bytes: int
    lazy: bool  # what it holds stands in the live buffers and takes no memory of its own
    complete: bool  # a request can resume at its end, from its snapshots and those before it
    age_s: float  # since it was last used
    active: bool  # on the path that the live caches follow
    frontier: bool  # where they stand
    user: bool  # at a point that was asked for, and not only passed
    first_tokens: tuple[int, ...]  # of its edge; a media range shows as its fold, above any id
    last_tokens: tuple[int, ...]  # none where the first ones are the whole edge


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """What a node's facts depend on besides the node."""

    path: tuple[Node, ...]
    now: float
    look_ahead: LookAhead

    def facts(self, node: Node, depth: int) -> NodeFacts:
        held = [snapshot for snapshot in node.snapshots if snapshot is not None]
        first, last = _ends(node.edge)
        return NodeFacts(
            depth=depth,
            start=node.start,
            end=node.end,
            owned_bytes=node.owned_bytes,
            lazy=bool(held) and node.owned_bytes == 0,
            complete=len(held) == len(node.snapshots),
            age_s=max(0.0, self.now - node.last_used),
            active=node in self.path,
            frontier=node is self.path[-1],
            user=node.user,
            first_tokens=self._tokens(first),
            last_tokens=self._tokens(last),
        )

    def _tokens(self, keys: Keys) -> tuple[int, ...]:
        return tuple(token_of(key, self.look_ahead) for key in keys)


def _ends(edge: Keys) -> tuple[Keys, Keys]:
    return (edge, ()) if len(edge) <= 2 * _SHOWN else (edge[:_SHOWN], edge[-_SHOWN:])
