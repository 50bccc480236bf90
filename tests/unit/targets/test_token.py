from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from lbctl.targets import token
from lbctl.targets.token import Token, UnquotedError, finalize, write


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A template to fill, in a separate folder."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(token.resources, "templates", lambda: tmp_path)
    token.environment.cache_clear()
    return tmp_path / "folder" / "t.j2"


def test_token_and_int_are_written_unchanged() -> None:
    assert finalize(Token('"a;b"')) == '"a;b"'
    assert finalize(7) == "7"


class _Text(str):
    """A subclass of str, like markup."""


class _Number(int):
    pass


@pytest.mark.parametrize("value", ["x", "", True, False, 1.5, None, b"x", [], Token, _Text("x"), _Number(1), object()])
def test_other_values_are_not_written(value: object) -> None:
    with pytest.raises(UnquotedError):
        finalize(value)


@pytest.mark.parametrize("text", ["a\nb", "a\x00b"])
def test_token_is_one_line(text: str) -> None:
    with pytest.raises(UnquotedError):
        finalize(Token(text))


@pytest.mark.parametrize(
    "body",
    ["{{ text }}", "{{ token ~ token }}", "{{ token|string }}", "{{ token|upper }}", "{{ [token]|join }}", "{{ true }}",
     "{{ 'x' }}", "{{ none }}", "{{ '%s' % token }}", "{{ number / 2 }}", "{{ token.text }}", "{{ missing }}"],
)  # fmt: skip
def test_template_cannot_write_unquoted_values(template: Path, body: str) -> None:
    template.write_text(body)
    with pytest.raises(UnquotedError):
        write("folder", "t.j2", {"text": "x", "token": Token("x"), "number": 3})


def test_undefined_name_is_an_error(template: Path) -> None:
    template.write_text("{% for item in missing %}x{% endfor %}")
    with pytest.raises(UndefinedError):
        write("folder", "t.j2", {})


def test_each_line_has_the_path_of_its_first_value(template: Path) -> None:
    template.write_text("{% for item in items %}\nserver {{ item }} {{ other }};\n{% endfor %}\nend {{ plain }}\n")
    replica = ("pools", "llama", "replicas", "0")
    pin = ("routes", "chat", "pin", 0)
    items = [Token("a", replica), Token("b", pin), Token("c")]
    values = {"items": items, "other": Token("o", ("listeners", "l")), "plain": Token("p")}
    text, sources = write("folder", "t.j2", values)
    assert text == "server a o;\nserver b o;\nserver c o;\nend p\n"
    assert sources == {1: replica, 2: pin, 3: ("listeners", "l")}
