"""What a chat template can do, see and cost (spec 06 TMP-1, TMP-2, TMP-6)."""

import threading
from datetime import datetime

import pytest

from forerun.base.errors import LoadError, RequestError
from forerun.chat.metering import RenderLimits
from forerun.chat.template import Template

NOW = datetime(2026, 3, 4, 5, 6)
SMALL = RenderLimits(seconds=0.05, output_bytes=10_000, made_bytes=50_000)


def render(source, limits=None, **variables):
    return Template(source, limits).render(variables, NOW)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "2"),
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        ("{% macro m() %}{{ strftime_now('%H') }}{% endmacro %}{{ m() }}", "05"),
        ("{{ dict(a=1, b=2) | tojson }}", '{"a": 1, "b": 2}'),
        ("{% set n = namespace(a=1, self=5) %}{% set n.a = n.a + n.self %}{{ n.a }}", "6"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{{ 'é👩' | tojson(ensure_ascii=true) }}", '"\\u00e9\\ud83d\\udc69"'),
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ 'x'.join(['a', 'b']) ~ (['c', 'd'] | join(', ')) }}", "axbc, d"),
        ("{{ [1, 2] | map('string') | join('-') }}", "1-2"),
        ("{{ '%s-%02d' % ('a', 5) }}{{ '{:>3}'.format('b') }}{{ 'x' * 3 }}", "a-05  bxxx"),
        ("{{ 'a\nb' | indent(2) }}{{ ' c ' | trim | upper }}{{ 2 ** 3 }}", "a\n  bC8"),
        ("{{ 'ab' | replace('b', 'c') }}{{ 'ab'.replace('a', '') }}{{ 7 % 4 }}", "acb3"),
        (
            "{% set t %}in{{ 1 }}{% endset %}{{ t }}{% for x in [] %}{% else %}none{% endfor %}",
            "in1none",
        ),
        ("{{ absent is defined }}{{ messages[0].content }}", "Falsehi"),
    ],
)
def test_templates_do_what_published_ones_expect(source, text):
    """TMP-1."""
    assert render(source, messages=[{"content": "hi"}]) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__class__.mro() }}",
        "{{ lipsum(5) }}",
        "{{ '{0.__class__.x}'.format(1) }}",
    ],
)
def test_templates_cannot_reach_out_of_the_sandbox(source):
    """TMP-1."""
    with pytest.raises(RequestError, match="chat template refuses the request"):
        render(source, messages=[])


def test_a_templates_own_refusal_reaches_the_caller():
    """TMP-6: on one line, status 400."""
    with pytest.raises(RequestError, match=r"refuses the request: Roles must alternate$") as caught:
        render("{{ raise_exception('Roles  must\nalternate') }}")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source", ["{{ 'a' + 1 }}", "{{ a.b.c }}", "{{ 1 // 0 }}", "{{ [] | min }}{{ '%d' % 'x' }}"]
)
def test_a_template_that_fails_is_a_bad_request(source):
    """TMP-6."""
    with pytest.raises(RequestError, match="refuses the request"):
        render(source)


SPINNING = {
    "a loop that writes nothing": "{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}",
    "a loop whose condition never holds": "{% for a in many %}{% for b in many if b + b %}"
    "{% endfor %}{% endfor %}",
    "macros that call each other": "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n "
    "- 1) %}{% endif %}{% endmacro %}{{ f(20) }}",
    "a recursive loop": "{% for a in [[0] * 9] recursive %}{% if loop.depth < 20 %}{% set b = "
    "loop([1, 2]) %}{% endif %}{% endfor %}",
    "a called block": "{% macro f() %}{% for a in many %}{{ caller() }}{% endfor %}"
    "{% endmacro %}{% call f() %}{% for a in many %}{% endfor %}{% endcall %}",
}


@pytest.mark.parametrize("source", SPINNING.values(), ids=SPINNING.keys())
def test_a_template_that_loops_is_stopped(source):
    """TMP-6: also one that writes nothing, where only its own steps can be counted."""
    with pytest.raises(RequestError, match=r"stopped: it ran longer than 0.05 seconds"):
        render(source, RenderLimits(seconds=0.05), many=[0] * 3000)


GROWING = {
    "writing": "{% for a in range(999) %}{{ 'x' * 999 }}{% endfor %}",
    "characters of several bytes": "{% for a in range(9) %}{{ '日' * 999 }}{% endfor %}",
    "doubling": "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}",
    "adding": "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}"
    "{% endfor %}",
    "keeping": "{% set n = namespace(x=[]) %}{% for a in range(999) %}{% set n.x = n.x + "
    "['x' * 99] %}{% endfor %}",
    "a block": "{% set x %}{% for a in range(999) %}{{ text }}{% endfor %}{% endset %}",
    "a macro": "{% macro f() %}{% for a in range(999) %}{{ 'xxxxxxxxxxx' }}{% endfor %}"
    "{% endmacro %}{% set x = f() %}",
    "times": "{{ 'a' * 99999999999 }}",
    "a list times": "{{ ([1] * 99999999999) | length }}",
    "a power": "{{ 10 ** 999999999 }}",
    "padding": "{{ 'a' | center(99999999999) }}",
    "padding a variable": "{{ (1 | string) | center(99999999999) }}",
    "a method": "{{ 'a'.ljust(99999999999) }}",
    "tabs": "{{ '\t'.expandtabs(99999999999) }}",
    "a format": "{{ '%099999999999d' % 1 }}",
    "a format's star": "{{ '%*d' % (99999999999, 1) }}",
    "a format filter": "{{ '%099999999999d' | format(1) }}",
    "a format method": "{{ '{:099999999999d}'.format(1) }}",
    "joining": "{{ range(999) | join('x' * 999) }}",
    "joining by method": "{{ ('x' * 999).join(range(999) | map('string')) }}",
    "replacing": "{{ ('x' * 999) | replace('x', 'y' * 999) }}",
    "replacing by method": "{{ ('x' * 999).replace('x', 'y' * 999) }}",
    "indenting": "{{ ('\n' * 999) | indent(99999999) }}",
    "wrapping": "{{ ('x ' * 999) | wordwrap(1, wrapstring='y' * 999) }}",
    "batches": "{{ [1] | batch(99999999999, 0) | list }}",
    "slices": "{{ [1] | slice(99999999999) | list }}",
    "a filter's results": "{% set n = namespace(x=[]) %}{% set b = 'x' * 999 %}{% for a in "
    "range(999) %}{% set n.x = [n.x, b | upper] %}{% endfor %}",
    "shared lists": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] "
    "%}{% endfor %}{{ n.x }}",
    "shared lists as JSON": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = "
    "[n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "shared lists joined": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = "
    "[n.x, n.x] %}{% endfor %}{{ n.x ~ 'a' }}",
    "shared lists as a string": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | string }}",
    "JSON's indent": "{{ [1] | tojson(indent=99999999999) }}",
}


@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING.keys())
def test_a_template_that_grows_is_stopped(source):
    """TMP-6: before the memory is taken, whatever makes the large value."""
    with pytest.raises(RequestError, match=r"stopped: it(s output is longer| made a value)"):
        render(source, RenderLimits(10.0, SMALL.output_bytes, SMALL.made_bytes), text="x" * 99)


def test_the_limits_of_a_real_server():
    """TMP-6: 2 seconds, 16 MiB; a prompt just below is rendered."""
    assert (RenderLimits().seconds, RenderLimits().output_bytes) == (2.0, 16 * 2**20)
    text = "日" * (16 * 2**20 // 3)
    assert render("{{ a }}", a=text) == text
    with pytest.raises(RequestError, match="16777216 bytes"):
        render("{{ a }}x", a=text + "x")


def test_endless_recursion_is_a_bad_request():
    """TMP-6."""
    with pytest.raises(RequestError, match="refuses the request"):
        render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [("a\n{% if %}", "line 2"), ("{{ a | nosuch }}", "nosuch"), ("{% generation %}", "generation")],
)
def test_a_template_that_is_no_jinja_is_refused_at_load(source, message):
    """TMP-6: with the line that is wrong."""
    with pytest.raises(LoadError, match=message):
        Template(source)


def test_literals_are_text_and_string_constants():
    """TOK-2: what tells which added tokens are control tokens."""
    literals = Template("<a>{{ '<b>' ~ c['<d>'] }}{# <e> #}{{ f }}").literals
    assert all(token in literals for token in ("<a>", "<b>", "<d>"))
    assert "<e>" not in literals
    assert "<a><b>" not in literals


def test_one_template_renders_in_many_threads():
    """TMP-6: each rendering has limits of its own."""
    template = Template("{% for a in range(200) %}{{ b }}{% endfor %}", SMALL)
    texts = {}

    def work(name):
        texts[name] = [template.render({"b": name}, NOW) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {name: [name * 200] * 20 for name in "abcd"}
