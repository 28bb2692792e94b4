"""Templates written to freeze or exhaust the process are refused within the limits (06 TMP-6)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS, MEGABYTES = 3.0, 200

DOUBLED = (
    "{% set n = namespace(x=[1]) %}{% for a in range(24) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
)
WIDE = "{% set l = [['x'] * 99999] * 99999 %}"
BIG = "{% set t = 'x' * 16000000 %}"
FOREVER = "{% for a in range(100000) %}{% for b in range(100000) %}"
END = "{% endfor %}{% endfor %}"

HOSTILE = {
    "integers from bytes": "{{ ((0).from_bytes(('a'*1500000).encode(),'big')) // "
    "((0).from_bytes(('a'*700000).encode(),'big')) > 1 }}",
    "an integer's method by filter": "{{ (1 | attr('to_bytes'))(2000000000, 'big') | length }}",
    "an integer's method by name": "{{ 1['to_bytes'](2000000000, 'big') | length }}",
    "bytes of an integer": "{{ (1).to_bytes(2000000000, 'big') | length }}",
    "bytes of a text": "{{ 'a'.encode() }}",
    "a float's ratio": "{{ (1e300).as_integer_ratio()[0] ** 2 }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a power below zero": "{{ 10 ** -(10 ** 9) }}",
    "powers of powers": "{% set n = namespace(x=2) %}{% for a in range(99) %}"
    "{% set n.x = n.x * n.x %}{% endfor %}",
    "a power by steps": "{% set n = namespace(x=3) %}{% for a in range(99) %}"
    "{% set n.x = n.x ** 3 // 2 %}{% endfor %}",
    "adding integers": "{% set n = namespace(x=1) %}{% for a in range(99999) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "an integer of another base": "{{ ('f' * 9000000) | int(base=16) // 3 }}",
    "an integer of many digits": "{{ ('9' * 9000000) | int + raise_exception('x') }}",
    "integers in a sum": "{{ ([10 ** 4000] * 99999) | sum * 10 ** 4000 }}",
    "a nested width": "{{ '{0:{1}}'.format(1, 2000000000) }}",
    "a named nested width": "{{ '{:{w}}'.format(1, w=2000000000) }}",
    "a nested precision": "{{ '{:.{p}f}'.format(1.5, p=2000000000) }}",
    "a width by pieces": "{{ '{0:{1}{1}}'.format(1, 99999) }}",
    "a mapped format": "{{ '{a:{b}}'.format_map({'a': 1, 'b': 2000000000}) }}",
    "a mapped format by filter": "{{ ('{a:2000000000}' | attr('format_map'))({'a': 1}) }}",
    "a format by filter": "{{ ('{:{}}' | attr('format'))(1, 2000000000) }}",
    "a format of escaped text": "{{ ('{:{}}' | e).format(1, 2000000000) }}",
    "one field many times": "{{ ('{0}' * 99999).format('x' * 99999) }}",
    "one named value many times": "{{ ('%(a)s' * 99999) % {'a': 'x' * 99999} }}",
    "a format's star": "{{ '%*d' % (2000000000, 1) }}",
    "a star behind flags": "{{ '%-*d' % (2000000000, 1) }}{{ '%0*d' % (2000000000, 1) }}",
    "a star as precision": "{{ '%9.*f' % (2000000000, 1) }}",
    "a star by filter": "{{ '%-*d' | format(2000000000, 1) }}",
    "a percent width": "{{ '%2000000000d' % 1 }}",
    "centering": "{{ 'a'.center(2000000000) }}",
    "padding left": "{{ 'a'.rjust(2000000000) }}",
    "padding right": "{{ 'a'.ljust(2000000000) }}",
    "filling with zeros": "{{ 'a'.zfill(2000000000) }}",
    "tabs": BIG + "{{ ('\t' * 16000000).expandtabs() }}",
    "wide tabs": "{{ '\t'.expandtabs(2000000000) }}",
    "replacing": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replacing nothing": "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "replacing by names": "{{ ('a' * 99999) | replace(new='b' * 99999, old='a') }}",
    "joining": "{{ ('a' * 99999).join('b' * 99999) }}",
    "joining a list": "{{ (['a'] * 99999) | join('b' * 99999) }}",
    "joining nested lists": WIDE + "{{ l | join }}",
    "translating": "{{ 'aaa'.translate({97: 'b' * 99}) }}",
    "a filter's center": "{{ 'a' | center(2000000000) }}",
    "a filter's indent": "{{ ('\n' * 99999) | indent(99999) }}",
    "a filter's text indent": "{{ ('\n' * 99999) | indent('x' * 99999) }}",
    "wrapping": "{{ ('a ' * 99999) | wordwrap(1, wrapstring='b' * 99999) }}",
    "wrapping large texts": BIG + "{{ t | wordwrap(1) }}",
    "batches": "{{ [1] | batch(2000000000, 0) | list }}",
    "slices": "{{ [1] | slice(2000000000) | list }}",
    "rounding": "{{ 5 | round(2000000000) }}",
    "rounding below zero": "{{ 5 | round(-2000000000) }}",
    "rounding up": "{{ 1.5 | round(2000000000, 'ceil') }}",
    "a range": "{{ range(2000000000) | list }}",
    "ranges kept": "{% set n = namespace(x=[]) %}" + FOREVER + "{% set n.x = [n.x, range(99999) | "
    "list] %}" + END,
    "a list times": "{{ ([1] * 2000000000) | length }}",
    "a text times": "{{ 'a' * 2000000000 }}",
    "times a text": "{{ 2000000000 * 'a' }}",
    "a namespace": "{% set n = namespace(x='a' * 999999) %}{% for a in range(999) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a namespace of lists": "{% set n = namespace(x=[]) %}" + FOREVER + "{% set n.x = n.x + [b, b, "
    "b] %}" + END,
    "slices of a text kept": BIG + "{% set n = namespace(x=[]) %}{% for a in range(999) %}"
    "{% set n.x = [n.x, t[1:]] %}{% endfor %}",
    "slices kept in namespaces": BIG + "{% set n = namespace(x=1) %}{% for a in range(99) %}"
    "{% set n.x = namespace(a=n.x, b=t[1:]) %}{% endfor %}{{ raise_exception('kept') }}",
    "wide characters": "{% set n = namespace(x=[]) %}{% for a in range(99) %}"
    "{% set n.x = [n.x, '\U0001f600' * 9999999] %}{% endfor %}",
    "many short texts": BIG + "{{ t | list | length }}{{ t.split('x') | length }}",
    "groups": BIG + "{{ t | groupby('a') | list | length }}",
    "the largest": BIG + "{{ t | max }}",
    "what Jinja asserts": "{{ 'abcdef' | truncate(2, end='abcdef') }}",
    "words": BIG + "{{ t | replace('x', 'x ') | title | wordcount }}",
    "lines": BIG + "{{ t.replace('x', '\n').splitlines() | length }}",
    "a macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "two macros": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a macro's arguments": "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}"
    "{{ varargs }}{% endif %}{% endmacro %}{{ f(60) }}",
    "an include": "{% include 'a' %}",
    "a parent": "{% extends 'a' %}",
    "an import": "{% import 'a' as a %}",
    "nested loops": FOREVER + END,
    "nested loops that hold nothing": "{% for a in range(100000) if range(100000) | select('gt', "
    "999999) | list %}{% endfor %}",
    "loops without a body": "{% for a in range(100000) if (range(99999) | list == range(99999) | "
    "list) and false %}{% endfor %}",
    "a test in a filter": "{% set l = range(99999) | list %}{{ range(99999) | select('in', l[:1] * "
    "99999) | list }}",
    "comparing shared lists": DOUBLED + "{% set y = n.x %}" + DOUBLED + "{{ y == n.x }}",
    "comparing wide lists": WIDE + "{% set k = [['x'] * 99999] * 99999 %}{{ l == k }}",
    "hashing shared tuples": DOUBLED.replace("[n.x, n.x]", "(n.x, n.x)").replace("[1]", "(1,)")
    + "{{ {n.x: 1} }}",
    "hashing deep tuples": "{% set n = namespace(x=(1,)) %}{% for a in range(99999) %}"
    "{% set n.x = (n.x,) %}{% endfor %}{{ {n.x: 1} | length }}",
    "views of dictionaries": "{% set n = namespace(x={'a': 1}) %}{% for a in range(60) %}{% set "
    "n.x = {'a': n.x.values(), 'b': n.x.values()} %}{% endfor %}{{ n.x }}",
    "namespaces that hold each other": "{% set n = namespace(x=1) %}{% for a in range(60) %}{% set "
    "n.x = namespace(x=[n.x, n.x]) %}{% endfor %}{{ n.x }}{{ raise_exception('short') }}",
    "one large text many times": BIG + "{% set l = [t] * 99999 %}{{ l == [t ~ 'a'] * 99999 }}",
    "shared lists formatted": DOUBLED + "{{ '%s' % [n.x] }}",
    "shared lists in upper case": DOUBLED + "{{ n.x | upper }}",
    "a sum of lists": "{{ ([[1] * 99999] * 99999) | sum(start=[]) | length }}",
    "a sum of few lists": "{{ ([[1] * 9] * 90000) | sum(start=[]) | length }}",
    "JSON indented deep": "{% set n = namespace(x=[1]) %}{% for a in range(150) %}{% set n.x = "
    "[n.x, 1] %}{% endfor %}{{ ([n.x] * 5000) | tojson(indent=60) }}",
    "JSON with wide separators": "{{ ([1] * 99999) | tojson(separators=('x' * 99999, ':')) }}",
    "JSON of many characters": "{{ ('日' * 5000000) | tojson(ensure_ascii=true) }}",
    "constants": "{{ 'a' | center(15000000) }}" * 8,
    "constants in a condition": "{% if " + "('a' | center(15000000)) and " * 8 + "a.b.c %}{% endif "
    "%}",
    "a time": "{{ strftime_now('%2000000000d') }}{{ strftime_now('%99999d' * 99999) }}",
}
UNREADABLE = {
    "a number of many digits": "{{ " + "9" * 9999 + " }}",
    "a long number": "{{ 0x" + "f" * 99999 + " // 3 }}",
    "HTML": "{{ 'a@' | urlize }}",
    "a listing": "{{ [1] | pprint }}",
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, float, int]]:
    """What each template came to, its seconds and its MB."""
    prison = Path(__file__).with_name("template_prison.py")
    done = subprocess.run(
        [sys.executable, prison],
        input=json.dumps(HOSTILE | UNREADABLE),
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    lines = map(json.loads, done.stdout.splitlines())
    return {name: (outcome, seconds, megabytes) for name, outcome, seconds, megabytes in lines}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_in_time_and_memory(
    name: str, outcomes: dict[str, tuple[str, float, int]]
) -> None:
    """06 TMP-6: on one line, before the process feels it."""
    outcome, seconds, megabytes = outcomes[name]
    assert outcome.startswith("RequestError: the model's chat template "), outcome
    assert "MemoryError" not in outcome  # the kernel's limit, and not ours
    assert "\n" not in outcome
    assert seconds < SECONDS, outcome
    assert megabytes < MEGABYTES, outcome


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_no_template_needs_is_refused_at_load(
    name: str, outcomes: dict[str, tuple[str, float, int]]
) -> None:
    """06 TMP-6."""
    assert outcomes[name][0].startswith("LoadError: the chat template is no valid Jinja, line 1")
