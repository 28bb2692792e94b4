"""Tells a Go template from a Jinja one, which is all that forerun renders (spec 06 TMP-5).

Jinja reserves no names: `{{ end }}`, `{{ template }}` and `{{ block.text }}` are expressions of it.
So what counts is what Jinja cannot read: an operand that starts with a dot, a `$`, a keyword with
an operand behind it. Strings, comments and `{% ... %}` are left out of the search.
"""

import re
import textwrap

from forerun.base.errors import RequestError

SHOWN_LENGTH = 60

# A string that never ends goes to the end of the text, which keeps the search linear.
_STRING = r"""(?:"(?:\\.|[^"\\])*+"?|'(?:\\.|[^'\\])*+'?)"""
_PARTS = re.compile(
    r"\{%-?\s*raw\s*-?%\}(?:(?!\{%-?\s*endraw).)*+"
    r"|\{\#(?:(?!\#\}).)*+"
    rf"|\{{%(?:{_STRING}|(?!%\}})[^\"'])*+"
    rf"|\{{\{{(?P<action>(?:{_STRING}|(?!\}}\}})[^\"'])*+)",
    re.DOTALL,
)
_IS_STRING = re.compile(_STRING, re.DOTALL)
_GO = re.compile(
    r"[$`]"  # {{ $x := 1 }}, {{ range $i, $m := .Messages }}
    r"|^/\*"  # {{/* comment */}}
    r"|^\.(?:[a-z_]|$)"  # {{ .Prompt }}, {{ . }}
    r"|\(\s*\.[a-z_]"  # {{ f (.Role) }}
    r"|\s\.(?-i:[A-Z])"  # {{ json .ToolCalls }}
    r"|^(?:else\s+)?(?:if|with|range)\s(?:.*[\s(])?\.(?:[a-z_]|$)"  # {{ range .messages }}
    r'|^(?:template|define|block)\s+""',  # {{ template "message" . }}
    re.IGNORECASE | re.DOTALL,
)


def refuse_go_template(template: str) -> None:
    """Raise RequestError, naming the Jinja alternative, if `template` is written for Go."""
    for part in _PARTS.finditer(template):
        action = part["action"]
        if action is not None and _GO.search(_IS_STRING.sub('""', action).strip("- \t\r\n")):
            found = textwrap.shorten("{{" + action + "}}", SHOWN_LENGTH)
            raise RequestError(
                f"TEMPLATE is written in Go's template language ({found}); write it in Jinja, for "
                "example {% for message in messages %}{{ message.content }}{% endfor %}, or leave "
                "TEMPLATE out to use the model's own"
            )
