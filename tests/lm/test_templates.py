"""Chat templates; the texts wanted are those of litert-lm 0.18.1, unless a test says otherwise."""

from typing import Any

import pytest

from jaxdelegate.bundles.metadata import Affixes
from jaxdelegate.errors import ModelError
from jaxdelegate.lm.templates import AffixTemplate, JinjaTemplate
from tests.support.language_models import CHATML

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {%- for item in message['content'] -%}
            {{ item['text'] | trim }}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""
LLAMA = (
    "{% for message in messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'][0]['text'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
THINKING = (
    "{{- messages[-1].content[0].text }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
)


def said(*texts: str, first: str = "user") -> list[dict[str, Any]]:
    roles = [first, *(["user", "assistant"] * 3)[first == "user" :]]
    return [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in zip(roles, texts, strict=False)
    ]


def rendered(template: str, messages: list[dict[str, Any]], **context: Any) -> str:
    return JinjaTemplate(template, "m.litertlm").render(messages, context, ends=True)


def test_chatml_shows_lists_as_litert_lm_does() -> None:
    assert rendered(CHATML, said('tabs\t"q" é \u200b \U0001f600\n')) == (
        '<|im_start|>user\n[{"type": "text", "text": "tabs\\t\\"q\\" é \\u{200b} \U0001f600\\n"}]'
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_gemma() -> None:
    assert rendered(GEMMA, said("be\ngood", " hi ", "yes", "x", first="system")) == (
        "<start_of_turn>user\nbe\ngood\n\nhi<end_of_turn>\n<start_of_turn>model\nyes<end_of_turn>\n"
        "<start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n"
    )


def test_llama() -> None:
    assert rendered(LLAMA, said(" hi ")) == (
        "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_thinking_is_off_only_if_asked() -> None:
    assert rendered(THINKING, said("a")) == "a"
    assert rendered(THINKING, said("a"), enable_thinking=True) == "a"
    assert rendered(THINKING, said("a"), enable_thinking=False) == "a<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ nothing }}", "|||"),
        ("{{ add_generation_prompt }} {{ bos_token is none }} {{ no is none }}", "true false true"),
        ("{{ messages[0] }}", '{"role": "user", "content": [{"type": "text", "text": "hi"}]}'),
        ("{{ messages[0].content | tojson }}", '[{"type": "text", "text": "hi"}]'),
        ("{{ messages[0].content | length }} {{ messages[0].content is string }}", "1 false"),
        ("{{ x }}", '[1, "a", none, true, {"k": 1.5}]'),
        ("{{ '<a>&\"' }} {{ '<a>' | tojson }}", '<a>&" "<a>"'),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc\n"),
        ("{% generation %}a{% endgeneration %}", "a"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(3) }}", "[3]"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "true"),
        # litert-lm has only some methods of Python's strings.
        ("{{ 'a,b'.split(',')[-1] }}{{ ' x'.strip() }}{{ 'xa' | lstrip('x') }}", "bxa"),
        ("{% for i in [1, 2] %}{{ i }}{% break %}{% endfor %}", "1"),
    ],
)  # fmt: skip
def test_values_and_whitespace(template: str, want: str) -> None:
    assert rendered(template, said("hi"), x=[1, "a", None, True, {"k": 1.5}]) == want


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for %}", "m.litertlm: chat template: syntax error"),
        ("{{ raise_exception('no\tmore') }}", r"chat template: no\tmore"),
        ("{{ nothing | lstrip }}", "has no attribute 'lstrip'"),
        ("{{ strftime_now(3) }}", "must be str"),
        ("{{ a.b }}", "`a` is undefined"),
        ("{{ 'a' + messages }}", "unsupported types string and sequence"),
        ("{% include '/etc/passwd' %}", "non-existing template"),
        ("{{ messages.__class__.__mro__ }}", "undefined"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "fuel"),
        ("{{ 'a' * 1000000000 }}", "fuel"),
        ("{{ '{:>100000000000000}' . format(3) }}", "format is not supported"),
        ("{{ '%100000000000000d' |format(3) }}", "format is not supported"),
        ("{% set n = namespace(x='aa') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}"
         "{% endfor %}", "fuel"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion limit"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion limit"),
        ("{% for i in range(99999) %}" + "a" * 200 + "{% endfor %}", "at most 16777216 characters"),
        (" " * (1 << 20) + "a", "at most 1048576 characters, got 1048577"),
    ],
)  # fmt: skip
def test_bad_templates_are_model_errors(template: str, says: str) -> None:
    with pytest.raises(ModelError) as error:
        rendered(template, said("hi"))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_affixes_surround_what_roles_say() -> None:
    affixes = {
        "user": Affixes("<U>", "</U>\n"), "model": Affixes("<M>", "</M>\n"),
        "system": Affixes("<S>", "</S>\n"),
    }  # fmt: skip
    template = AffixTemplate(affixes)
    messages = said("be good", "ab", "yes", first="system")
    assert template.render(messages, {}, ends=True) == (
        "<S>be good</S>\n<U>ab</U>\n<M>yes</M>\n<M>"
    )
    assert template.render([{"role": "user", "content": "x"}], {}, ends=False) == "<U>x</U>\n"
    assert AffixTemplate({}).render(messages, {}, ends=True) == "be goodabyes"
