"""Telling Go templates, which are refused, from Jinja (06 TMP-5)."""

import contextlib
import time

import pytest

from forerun.base.errors import RequestError
from forerun.base.go_templates import refuse_go_template

LONG_GO = """{{- if or .System .Tools }}<|im_start|>system
{{- if .System }}
{{ .System }}
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ end }}{{ end }}"""


@pytest.mark.parametrize(
    "template",
    [
        LONG_GO,
        "{{ .Prompt }}",
        "{{.Prompt}}",
        "{{ . }}",
        "{{- .System -}}",
        "{{ if .System }}<s>{{ end }}",
        "{{- if .System }}",
        "a {{ range $i, $m := .Messages }}{{ end }}",
        "{{- range .Messages }}x",
        "{{ range .messages }}x",
        "{{ range . }}x",
        "{{ with .tools }}",
        "{{ $x := 1 }}",
        "{{ $ }}",
        "{{/* comment */}}",
        "{{- /* comment */ -}}",
        '{{ if eq "user" .Role }}',
        '{{ if (eq .Role "user") }}',
        '{{ if and (ne .role "a") .Last }}',
        "{{- else if eq .role 1 }}",
        "{{ json .ToolCalls }}",
        "{{ len (.Messages) }}",
        '{{ template "turn" . }}',
        '{{ define "turn" }}',
        '{{ block "turn" . }}',
        "{{ printf `%s` now }}",
        "'it''s {{ .Prompt }}",
        "{% if x %}{{ .Prompt }}",
        "{# a comment #}{{ .Prompt }}",
    ],
)
def test_a_go_template_is_refused_with_the_alternative(template):
    with pytest.raises(RequestError, match=r"Go's template language.*write it in Jinja"):
        refuse_go_template(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% for block in message.content %}{{ block.text }}{% endfor %}",
        "{{ template }}",
        "{{ end }}",
        "{{ else }}{{ break }}{{ define }}{{ with.x }}{{ if }}",
        "{{ template ~ 'x' }}{{ template if x else y }}{{ block is defined }}{{ block | trim }}",
        "{{ end_of_turn }}{{ iffy }}",
        "{{ range(3) | list }}{{ range (1.5) }}",
        "{{ messages[0].content }}{{- m.role -}}",
        "{{ 'Use .NET or $HOME' }}{{ \"if .X\" ~ ' .Y' }}",
        "{{ text\n   .strip() }}",
        "{{ '{{ .Prompt }}' }}",
        "{{ 'it\\'s {{ .Prompt }}' }}",
        "{% set go = '{{ .Prompt }}' %}",
        "{# was {{ .Prompt }} #}",
        "{% raw %}{{ .Prompt }}{% endraw %}",
        "a .Prompt and $HOME",
        "{{ 1.5 }}{{ x['.A'] }}",
        "",
    ],
)
def test_jinja_is_not_taken_for_go(template):
    refuse_go_template(template)


@pytest.mark.parametrize(
    "piece", ["{#", "{{", "{%", "{{'", '{{"\\', "{{ if .", "{{ if ", "{% raw %}"]
)
def test_the_search_takes_linear_time(piece):
    begun = time.perf_counter()
    with contextlib.suppress(RequestError):
        refuse_go_template(piece * 100_000)
    assert time.perf_counter() - begun < 2
