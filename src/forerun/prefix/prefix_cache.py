"""One live set of caches and, beside it, every conversation that was evaluated (spec 02).

The live caches follow the *active path* of a trie. A request switches them to the path that it
shares with what is stored, so that only tokens that differ are evaluated; its prefill and its end
store what they made. A budget bounds what is stored, not the live buffers.
"""

import time
from collections.abc import Callable, Sequence

import torch

from forerun.base.errors import one_line
from forerun.base.logs import logger
from forerun.base.units import GIB
from forerun.contract.cache import LayerCache
from forerun.prefix import trie
from forerun.prefix.captures import CaptureRule, PendingCapture, planned, resume_point
from forerun.prefix.eviction import EvictionQueue, in_the_way
from forerun.prefix.facts import NodeFacts, Viewpoint
from forerun.prefix.keys import LookAhead, MediaRange, effective_tokens, keys_of
from forerun.prefix.layers import Layers, close_all
from forerun.prefix.session import Session
from forerun.prefix.storage import Storage
from forerun.prefix.trie import Keys, Match, Node

MOST_BYTES = 8 * GIB  # of stored snapshots, however much memory there is (STR-7)

_NO_MEMORY = (RuntimeError, MemoryError)  # torch has no type of its own for it on a CPU
_MANY_JOINS = 8  # pieces that cost more to restore one by one than to copy out once more
_MANY_NODES = 1000  # from here on, looking for what to evict costs more than what is evicted

log = logger(__name__)


class PrefixCache:
    """Belongs to a loaded model, whose caches it rewinds; touched only from the device thread.

    Law: between requests all layers rest at the end of the active path's last node, the trie
    frontier (STR-2, STR-4).
    """

    def __init__(
        self,
        caches: Sequence[LayerCache | None],
        *,
        look_ahead: LookAhead = 0,
        budget_bytes: int = MOST_BYTES,
        captures: CaptureRule | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        caches      of the target's layers, then of the drafter's that owns caches
        look_ahead  of that drafter: 1 if its state at a position needs the token after it (KEY-4)
        """
        assert look_ahead in (0, 1), f"a look-ahead of {look_ahead} is not supported"
        self._layers = Layers(caches)
        self._look_ahead: LookAhead = look_ahead
        self._rule = captures or CaptureRule()
        self._clock = clock
        self._budget = budget_bytes
        self._storage = Storage(self._layers, clock())
        self.path = [self.root]
        self._pending: tuple[PendingCapture, ...] = ()

    @property
    def root(self) -> Node:
        return self._storage.root

    @property
    def frontier(self) -> Node:
        return self.path[-1]

    @property
    def snapshot_bytes(self) -> int:
        """Memory that stored snapshots own."""
        return self._storage.owned_bytes

    @property
    def live_tokens(self) -> int:
        return self._layers.offset

    @property
    def budget_bytes(self) -> int:
        return self._budget

    @property
    def pending(self) -> tuple[PendingCapture, ...]:
        """Captures scheduled and not attached yet."""
        return self._pending

    def set_budget(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._enforce(budget_bytes)

    def nodes(self) -> tuple[NodeFacts, ...]:
        """Every node, parents before their children."""
        view = Viewpoint(tuple(self.path), self._clock(), self._look_ahead)
        return tuple(view.facts(node, depth) for depth, node in trie.walk(self.root))

    def begin(self, tokens: Sequence[int], media: Sequence[MediaRange] = ()) -> Session:
        """Switch to what is stored of `tokens`, and schedule what their prefill shall capture.

        At least one of the tokens is left to evaluate, to draw the first new one from.
        """
        keys = self._keys(tokens, media)
        found = trie.match(self.root, keys)
        matched = found.matched
        resume = resume_point(min(matched, len(tokens) - 1), media)  # BEG-2, BEG-3
        if resume < matched:
            found = trie.match(self.root, keys[:resume])
        cached = self._switch_or_forget(found, media)
        self._schedule(len(tokens), cached, resume, media)
        log.debug(
            "%s total=%d matched=%d cached=%d left=%d",
            "hit" if cached else "miss",
            len(tokens),
            matched,
            cached,
            len(tokens) - cached,
        )
        return Session(self, tuple(tokens), tuple(media), cached=cached, matched=matched)

    def attach(self, recorded: Sequence[int], media: Sequence[MediaRange]) -> None:
        """Give every capture that all layers reached a node at its offset (ATT).

        recorded  the prompt and, at a session's end, what was drawn
        """
        try:
            self._attach(recorded, media)
        except _NO_MEMORY as error:
            log.warning("what a prompt captured is not kept: %s", one_line(error))
            self._enforce(0)
        self._enforce(self._budget)

    def close(self, recorded: Sequence[int], media: Sequence[MediaRange]) -> None:
        """Store what the caches hold by now of the prompt and all that was drawn.

        A request that has been answered does not fail because there is no memory to remember it.
        """
        try:
            self._close(recorded, media)
        except _NO_MEMORY as error:
            log.warning("what a request evaluated is not kept: %s", one_line(error))
            self.recover(error)
        self._enforce(self._budget)

    def recover(self, error: BaseException, *, kept: int | None = None) -> None:
        """After `error` in a request: back to the frontier, since all beyond it is doubtful.

        What is stored stays, unless memory is what was lacking. Raises nothing that `error` may
        have led to: that one is what the caller has to hear of.

        kept   leading tokens of the request that are in no doubt; what nobody else shares of those
               behind them goes. None: all that is stored is in none
        """
        try:
            self._pending = ()
            for captures in self._layers.take():
                close_all(captures)
            if isinstance(error, torch.OutOfMemoryError | MemoryError):
                self._enforce(0)
            while kept is not None and self.frontier.end > kept and not self.frontier.children:
                self._storage.remove(self.path.pop())
            self._back_to_frontier()
        except Exception as another:  # noqa: BLE001 - a session's border: `error` is told
            log.warning("all conversations are forgotten, after an error: %s", one_line(another))
            self.clear()

    def clear(self) -> None:
        """Forget everything, stored and live."""
        self._pending = ()
        self._storage.clear(self._clock())
        self._empty()

    def _attach(self, recorded: Sequence[int], media: Sequence[MediaRange]) -> None:
        pending, self._pending = self._pending, ()
        waiting = list(zip(pending, self._layers.take(), strict=True))
        keys, reached = self._keys(recorded, media) if waiting else (), self._layers.offset
        known = self.frontier
        try:
            while waiting and waiting[0][0].offset <= reached:
                capture = waiting[0][0]
                known = self.frontier
                self._advance(keys, capture.offset)
                self.frontier.user |= capture.user
                self._storage.attach(self.frontier, waiting.pop(0)[1])
                self.frontier.last_used = self._clock()
                self._compact()
        except BaseException:
            self._drop_beyond(known)
            raise
        finally:  # what was not reached, or not stored
            for _, captures in waiting:
                close_all(captures)

    def _close(self, recorded: Sequence[int], media: Sequence[MediaRange]) -> None:
        offset, keys = self._layers.offset, self._keys(recorded, media)
        assert offset <= len(keys), f"caches at {offset}, only {len(keys)} keys recorded"
        self.attach(recorded, media)
        if not self._layers.rewind(offset):  # a forward broke off (contract/model law 2)
            self._back_to_frontier()
        elif offset > self.frontier.end:
            self._store(keys, offset)
        else:
            self._follow(self.path)
        self.frontier.last_used = self._clock()

    def _keys(self, recorded: Sequence[int], media: Sequence[MediaRange]) -> Keys:
        return keys_of(effective_tokens(recorded, media), self._look_ahead)

    def _schedule(self, tokens: int, cached: int, branch: int, media: Sequence[MediaRange]) -> None:
        """Have all layers capture what this prompt passes (SCH)."""
        if not self._layers:
            return
        self._pending = planned(
            self._rule,
            tokens=tokens,
            cached=cached,
            branch=branch,
            look_ahead=self._look_ahead,
            media=media,
        )
        self._layers.prepare([capture.offset for capture in self._pending])

    def _switch_or_forget(self, found: Match, media: Sequence[MediaRange]) -> int:
        """A request need not fail because there was no memory to keep another one's state."""
        try:
            return self._switch(found, media)
        except _NO_MEMORY as error:
            log.warning("stored conversations are forgotten: %s", one_line(error))
            self.clear()
            return 0
        except BaseException as error:
            self.recover(error)
            raise

    def _switch(self, found: Match, media: Sequence[MediaRange]) -> int:
        """Bring the caches to what `found` names, as far as they get; the tokens they then hold."""
        *_, ancestor = (a for a, b in zip(self.path, found.path, strict=False) if a is b)
        self._make_room(found.path)
        self._layers.rewind_or_free(min(ancestor.end, found.matched))
        self._layers.page_in(found.path, found.matched)
        self._layers.align(found.path, self._layers.offset)
        while (resume := resume_point(self._layers.offset, media)) < self._layers.offset:
            self._layers.align(found.path, resume)
        self._follow(found.path)
        for node in self.path:
            if node.joins > _MANY_JOINS:
                self._storage.reissue(node)
        self.frontier.last_used = self._clock()
        self._enforce(self._budget)
        return self._layers.offset

    def _follow(self, path: Sequence[Node]) -> None:
        """Make `path` the active one, as far as the caches hold it (SWI-7, SWI-8)."""
        offset = self._layers.offset
        reached = [self.root, *(node for node in path[1:] if node.start < offset)]
        if offset < reached[-1].end:
            reached[-1] = self._storage.cut(reached[-1], offset - reached[-1].start)
        self.path = reached

    def _advance(self, keys: Keys, end: int) -> None:
        """Move the frontier to `end`, along what is stored and beyond (ADV-1)."""
        while (at := self.frontier.end) < end:
            child = self.frontier.children.get(keys[at])
            if child is None:
                self.path.append(trie.grow(self.frontier, keys[at:end]))
                return
            shared = trie.common_length(child.edge, keys[at : min(end, child.end)])
            if shared < len(child.edge):
                child = self._storage.cut(child, shared)
            self.path.append(child)

    def _compact(self) -> None:
        """Join the frontier to nodes before it whose borders nobody needs (CMP-1, SWI-11)."""
        while len(self.path) > 2:  # else the node before it is the root
            parent = self.path[-2]
            if parent.user or len(parent.children) != 1:
                return
            self._storage.join(parent)
            self.path.pop()

    def _enforce(self, budget: int) -> None:
        """Evict until the budget holds, or nothing is left that would free anything (EVI-1).

        What costs nothing goes first: rows of the active path that a rewind had copied out and
        that stand in the live buffers again.
        """
        if self._claimed(self.path) > budget:
            for active in self.path:
                self._storage.reissue(active)
        self._evict(budget)

    def _make_room(self, path: Sequence[Node]) -> None:
        """Ahead of a switch to `path`: evict what would be copied out only to be evicted then."""
        if self._claimed(path) > self._budget:
            for active in self.path:
                self._storage.reissue(active)
        self.path = [self.root]  # all that is known of the layers until they have arrived
        self._evict(self._budget, ahead=path)

    def _claimed(self, path: Sequence[Node]) -> int:
        """Bytes that are stored, or will be once writes beyond `path` overwrite live rows.

        Without the latter a conversation larger than the budget would be copied out whole when
        another one takes its place, and be evicted only after that one's prompt.
        """
        storage = self._storage
        lazy = storage.lazy_bytes - sum(node.lazy_bytes for node in path)
        return storage.owned_bytes + lazy

    def _evict(self, budget: int, *, ahead: Sequence[Node] = ()) -> None:
        """Take steps until no more is claimed than the budget.

        ahead  a path that the layers are about to follow, of which nothing may go
        """
        if self._claimed(ahead or self.path) <= budget:
            return
        storage, steps = self._storage, 0
        held, nodes = storage.owned_bytes, storage.nodes()
        queue = EvictionQueue(nodes)
        # of many nodes a few more go, so that the next requests need not look for any
        enough = budget - budget // 64 if len(nodes) > _MANY_NODES else budget
        while self._claimed(path := ahead or self.path) > enough:
            protected = ahead or (self.frontier,)
            node = queue.next(protected, storage.join_frees)
            node = node or in_the_way(storage.nodes(), protected, path)
            if node is None:
                break
            self._evict_one(node, queue)
            steps += 1
        log.debug("evicted nodes=%d freed=%d", steps, held - storage.owned_bytes)

    def _evict_one(self, node: Node, queue: EvictionQueue) -> None:
        """Remove a leaf, or join a node with its one child (EVI-4)."""
        if node.children:
            child = self._storage.join(node)
            self.path = [kept for kept in self.path if kept is not child]
            queue.changed(node)
        else:
            self._storage.remove(node)
        queue.changed(node.parent)

    def _store(self, keys: Keys, offset: int) -> None:
        """A node for what was evaluated since the frontier (CLO-4)."""
        known = self.frontier
        try:
            self._advance(keys, offset)
            self._storage.page_out(self.frontier)
        except BaseException:
            self._drop_beyond(known)
            raise
        self._compact()

    def _drop_beyond(self, known: Node) -> None:
        """A new frontier may hold the state of one layer and no rows of another."""
        if self.frontier is not known and not self.frontier.children:
            self._storage.remove(self.path.pop())

    def _back_to_frontier(self) -> None:
        if not self._layers.rewind(self.frontier.end):
            self._empty()
            self._enforce(self._budget)

    def _empty(self) -> None:
        self._layers.free()
        self.path = [self.root]
