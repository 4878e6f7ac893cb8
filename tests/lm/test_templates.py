"""Chat templates; the texts wanted are those of litert-lm 0.18.1, unless a test says otherwise."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jaxdelegate.bundles.metadata import Affixes
from jaxdelegate.errors import ModelError
from jaxdelegate.lm.templates import CHILD, AffixTemplate, JinjaTemplate, Renderer
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
        ("{{ '{:>100000000000000}'.format(3) }}", "crashes the process that renders it"),
        ("{{ '%100000000000000d'|format(3) }}", "chat template: "),
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


# ---- what transformers' templates print, by jinja2


def transformers_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


TOOL = {"name": "f", "parameters": {"b": [1, 2.5, None, True], "a": 1.0, "é": "<&>\"'"}}
EXPRESSIONS = """
none
no
n
[none, 1.0]
1.0
w
-1.5
0.1
1e30
1e-7
i / 2
4 / 2
i // 2
w * i
w + i
2.5 | round
w | string
w ~ none ~ 'a'
none | string
n | default('x')
i | float
'%s-%d' | format('a', 1)
'%05.2f' | format(3.14159)
'%x %o %e %g' | format(255, 8, 12345.678, 0.001)
'%s %s %s' | format(none, true, w)
'%(a)s' | format(a=3)
'%+d%%' | format(3)
'%10s|%-10s|' | format('a', 'b')
'%c' | format('a')
['a', 'b'] | map('upper') | join(', ')
'{}-{a}'.format('x', a=1)
'{:>5}|{:.2f}'.format('a', 2.5)
tool | tojson
tool | tojson(indent=2)
tool | tojson(true)
tool | tojson(false, 1)
tool | tojson(ensure_ascii=true, indent=4)
tool | tojson(separators=(',', ':'))
tool | tojson(separators=[',', ':'], sort_keys=true)
tool | tojson(indent='  ')
'é"' | tojson
'é' | tojson(ensure_ascii=True)
none | tojson
true | tojson
0.5 | tojson
{'a': [1, 'b', none]} | tojson(indent=0)
"""


@pytest.mark.parametrize("expression", EXPRESSIONS.strip().splitlines())
def test_expressions_as_in_transformers(expression: str) -> None:
    sandbox = pytest.importorskip("jinja2.sandbox", reason="jinja2 is not installed")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = transformers_json
    source, values = f"{{{{ {expression} }}}}", {"n": None, "w": 2.0, "i": 7, "tool": TOOL}
    assert rendered(source, said("hi"), **values) == environment.from_string(source).render(values)


# ---- hostile templates, and their process

NESTED = "{% set n = namespace(x=[], y={}) %}{% for i in range(99999) %}"
HOSTILE = {
    "nested lists": NESTED + "{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
    "nested lists as JSON": NESTED + "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
    "nested maps": NESTED + "{% set n.y = {'a': n.y} %}{% endfor %}{{ n.y | string | length }}",
    "a list in itself": NESTED + "{% endfor %}{% set n.x = [n] %}{{ n.x }}",
    "lists that double": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}{% for i in n.x %}{% endfor %}",
    "lists chained": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = n.x | chain(n.x) %}{% endfor %}{{ n.x | length }}",
    "messages that double": "{% for i in range(60) %}{{ messages.extend(messages) }}{% endfor %}",
    "wide": "{{ '%4000000000d' | format(1) }}",
    "wide, by a name": "{{ ['%4000000000d'] | map('for' ~ 'mat', 1) | list }}",
    "wide date": "{{ strftime_now('%c' * 3000000) | length }}{{ 'a' * 400000000 * 400000 }}",
    "slow": "{% set a = range(99999) | list %}{% for i in range(99999) %}"
    "{% set b = a | tojson %}{% endfor %}",
    "slow sort": "{% set a = range(99999) | list %}{% for i in range(99999) %}"
    "{% set b = a | sort(reverse=true) %}{% endfor %}",
    "many signs": "{{ " + "-" * 400_000 + "1 }}",
    "many words": "{{ " + "not " * 200_000 + "1 }}",
    "many sums": "{{ 1" + "+1" * 400_000 + " }}",
    "many filters": "{{ 1" + "|string" * 140_000 + " }}",
    "many attributes": "{{ a" + ".a" * 400_000 + " }}",
    "many branches": "{% if 0 %}" + "{% elif 0 %}" * 80_000 + "{% endif %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_model_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHILD, "seconds", 2)
    with pytest.raises(ModelError, match=r"m\.litertlm: chat template: "):
        rendered(HOSTILE[name], said("hi"))
    assert rendered("{{ messages[0].role }}", said("hi")) == "user"


def test_a_template_has_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHILD, "seconds", 0.5)
    with pytest.raises(ModelError, match=r"chat template: it takes longer than 0\.5 s"):
        rendered(HOSTILE["slow"], said("hi"))


def test_a_hostile_template_is_not_probed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[Any] = []
    start = CHILD._started
    monkeypatch.setattr(CHILD, "_started", lambda: processes.append(start()) or processes[-1])
    CHILD.close()
    renderer = Renderer(JinjaTemplate("{{ messages | length }}" + HOSTILE["nested lists"], "m"))
    with pytest.raises(ModelError, match=r"crashes .*\(SIGSEGV\): it nests too deeply"):
        renderer.render(said("hi"), {}, ends=True)
    assert len(processes) == 2  # again, because others may have filled the memory of the first


@pytest.mark.parametrize(
    ("value", "says"),
    [({1, 2}, "expected variables with a form in JSON"), ({(1, 2): 3}, "expected variables")],
)
def test_variables_have_a_form_in_json(value: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        rendered("{{ x }}", said("hi"), x=value)


def test_variables_may_nest_deeply() -> None:
    deep: Any = "a"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ModelError, match="chat template: "):
        rendered("{{ x }}", said("hi"), x=deep)


def test_threads_get_their_own_texts() -> None:
    with ThreadPoolExecutor(8) as threads:
        texts = list(
            threads.map(lambda i: rendered(f"{i} {{{{ x }}}}", said("hi"), x=i), range(99))
        )
    assert texts == [f"{i} {i}" for i in range(99)]


# ---- lists and texts

BY_PARTS = (
    "{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}{% endfor %}{% endif %}"
)
BEFORE = "{% for m in messages %}[{{ m.role }} {% set c = m.content %}"
AFTER = "]{% endfor %}"
ROLES = ("system", "user", "assistant", "tool")
SHOWS = {
    "as it is": "{{ m.content }}",
    "with more": "{{ m.content ~ '' }}",
    "as JSON": "{{ m.content | tojson(indent=2) }}",
    "only texts": "{{ m.content + '' }}",
    "no lists": "{% if m.content is string %}{{ m.content }}{% endif %}",
}


def conversation() -> list[dict[str, Any]]:
    return [{"role": r, "content": [{"type": "text", "text": f"a {r}"}]} for r in ROLES]


@pytest.mark.parametrize("is_served", [False, True])
@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
@pytest.mark.parametrize("shows", SHOWS)
def test_each_role_gets_what_the_template_shows(shows: str, role: str, is_served: bool) -> None:
    shown = f"{{% if m.role == '{role}' %}}{SHOWS[shows]}{{% else %}}{BY_PARTS}{{% endif %}}"
    renderer = Renderer(JinjaTemplate(BEFORE + shown + AFTER, "m"))
    if is_served:
        renderer = renderer.without_lists()
    text = renderer.render(conversation(), {}, ends=True)
    said = {r: f"a {r}" for r in ROLES}
    if shows == "as JSON":
        said[role] = f'"a {role}"'
    assert text == "".join(f"[{r} {said[r]}]" for r in ROLES)


def test_roles_that_a_template_refuses_get_what_users_get() -> None:
    refuses = "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}"
    renderer = Renderer(JinjaTemplate(f"{refuses}{BEFORE}{{{{ m.content }}}}{AFTER}", "m"))
    messages = conversation()[1:3]
    assert renderer.without_lists().render(messages, {}, ends=True) == (
        "[user a user][assistant a assistant]"
    )
    assert renderer.render(messages, {}, ends=True).count('"type": "text"') == 2  # as litert-lm


def test_other_roles_get_what_users_get() -> None:
    renderer = Renderer(JinjaTemplate(f"{BEFORE}{{{{ c }}}}{AFTER}", "m")).without_lists()
    assert renderer.render([{**conversation()[0], "role": "critic"}], {}, ends=True) == (
        "[critic a system]"
    )


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
