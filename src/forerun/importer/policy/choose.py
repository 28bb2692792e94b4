"""The type that a tensor gets: drafts' exceptions, then the family's rule, then the default."""

from collections.abc import Callable

from forerun.base.json_types import JsonObject
from forerun.importer.policy.default import Asked, default_kind
from forerun.importer.policy.facts import asked_of
from forerun.importer.policy.families import rule_for
from forerun.importer.policy.kinds import SOURCE
from forerun.importer.policy.weight import WeightRole

Choose = Callable[[str, tuple[int, ...]], str]  # by name and shape: a type, or SOURCE


def chooser(config: JsonObject, kind: str, *, draft: bool = False, tied: bool = False) -> Choose:
    """The policy for a model of that config; SOURCE as `kind` keeps everything.

    tied  it comes without a head, for which its token embedding stands in
    """
    if kind == SOURCE:
        return lambda *_: SOURCE
    asked = asked_of(config, kind, draft=draft, tied=tied)
    return lambda name, shape: kind_of(name, shape, asked)


def kind_of(name: str, shape: tuple[int, ...], asked: Asked) -> str:
    """One of the types, or kinds.SOURCE: as it is.

    shape  of the values; a weight that is stored expert by expert is asked for as its stack
    """
    weight = WeightRole(name, shape)
    if asked.draft and (weight.is_table or weight.is_head):  # POL-7
        return weight.first_fit(asked.kind)
    rule = rule_for(asked.architecture)
    own = None if rule is None else rule(weight, asked)
    return default_kind(weight, asked) if own is None else own
