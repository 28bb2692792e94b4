"""Tells a Go template from a Jinja one, which is all that forerun renders (spec 06 TMP-5)."""

import re

from forerun.base.errors import RequestError

# What follows `{{` in Go and cannot in Jinja: a field, a variable, a comment or a Go keyword.
# `range(` is left out, because that one is a function of Jinja.
_GO_ACTION = re.compile(
    r"\{\{-?\s*(?:\.(?!\d)|\$|/\*|(?:if|else|end|with|define|template|block|break|continue)\b"
    r"|range\b(?!\())"
)


def refuse_go_template(template: str) -> None:
    """Raise RequestError, naming the Jinja alternative, if `template` is written for Go."""
    match = _GO_ACTION.search(template)
    if match is not None:
        raise RequestError(
            f"TEMPLATE is a Go template ({match.group()!r}); write it in Jinja, for example "
            "{% for message in messages %}{{ message.content }}{% endfor %}, or leave it out to "
            "use the checkpoint's own chat template"
        )
