"""Each target's quoting makes one word of the proxy's language that means exactly the text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lbctl.importer.haproxy.tokens import split_line
from lbctl.model import values as v
from lbctl.targets.envoy import matches
from lbctl.targets.haproxy import quote as haproxy
from lbctl.targets.nginx import quote as nginx

pytestmark = pytest.mark.no_cover

_SPECIAL = " '\"\\$%{}#;~`@|,()[]*?+^&=<>!-"
_TEXTS = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")) | st.sampled_from(_SPECIAL), min_size=1)
_NAME: TypeAdapter[Any] = TypeAdapter(v.ModelName)
_PATTERN: TypeAdapter[Any] = TypeAdapter(v.ModelPattern)
_MODELS = _TEXTS.map(lambda text: text.replace("*", "")[:255].strip()).filter(str.isprintable).filter(bool)


def _nginx_value(token: str) -> str:
    """Return what a token means to nginx, whose parser ends a quoted one at its first bare quote."""
    if not token.startswith('"'):
        assert re.fullmatch(r"[^\s;{}\"'\\$#]+", token), token
        return token
    assert re.fullmatch(r'"(?:[^"\\]|\\.)*"', token), token
    return re.sub(r'\\([\\"])', r"\1", token[1:-1])


def _takes(adapter: TypeAdapter[Any], text: str) -> bool:
    try:
        adapter.validate_python(text)
    except ValidationError:
        return False
    return True


@given(_TEXTS)
def test_word_of_haproxy_means_its_text(text: str) -> None:
    tokens = split_line(f"acl x req.hdr(a) -m str -- {haproxy.word(text).text} {haproxy.formatted(text).text}")
    assert [token.text for token in tokens[6:]] == [text, text.replace("%", "%%")]


@given(_TEXTS)
def test_token_of_nginx_means_its_text(text: str) -> None:
    assert _nginx_value(nginx.plain(text).text).replace(nginx.NO_VARIABLE, "") == text
    value = _nginx_value(nginx.value(text).text)
    assert re.sub(re.escape(nginx.DOLLAR), "", value).count("$") == 0
    assert value.replace(nginx.DOLLAR, "$") == text
    parts = list(nginx.chunks(text * 40))
    assert "".join(parts) == text * 40
    assert all(len(nginx.value(part).text.encode()) <= nginx.MAX_TOKEN_CHARACTERS + 2 for part in parts)


@given(_TEXTS, _TEXTS)
def test_expression_of_a_text_matches_nothing_else(text: str, other: str) -> None:
    for literal in (nginx.literal(text), matches.literal(text), re.escape(text)):
        whole = re.compile(rf"(?s:{literal})\Z")
        assert whole.match(text)
        assert whole.match(other) is None or other == text


@given(_MODELS)
def test_any_printable_name_of_a_model_is_taken(name: str) -> None:
    assert _takes(_NAME, name)
    assert _takes(_PATTERN, name)
    assert _takes(_PATTERN, f"{name}*")


@pytest.mark.parametrize(
    "name", ["", "*", "a*b", "*a", " a", "a ", "a\n", "\ta", "a\x7f", "a\u2028b", "\u202ea", "m" * 256]
)
def test_other_names_of_models_are_refused(name: str) -> None:
    assert not _takes(_NAME, name)
    assert not _takes(_PATTERN, name)
