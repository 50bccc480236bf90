"""Features of a request: session, prompt blocks and size, for any input of a client."""

from __future__ import annotations

import json
import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.ir.pools import DEFAULT_SESSION_KEYS, PickPolicy, Prefix, SessionKey
from lbctl.pick import partial_json
from lbctl.pick.features import BODY_LIMIT, Features, read
from lbctl.pick.prompt import MAX_PROMPT_TOKENS
from lbctl.pick.table import PoolTable
from tests.support.paths import FIXTURES

SESSION = (SessionKey(header="x-session-id"), SessionKey(body="$.prompt_cache_key"), SessionKey(body="$.meta.user"))
TABLE = PoolTable("llama", PickPolicy(SESSION, Prefix(block=16, blocks=8)), (), "llama-3", frozenset({"sql"}))
WITHOUT_BODIES = PoolTable("llama", PickPolicy((SESSION[0],), prefix=None), ())


def chat(*texts: str, **more: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "llama-3", "messages": messages, **more}).encode()


def features(body: bytes, headers: dict[str, list[str]] | None = None) -> Features:
    return read(TABLE, headers or {}, body, len(body))


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_present_session_key_counts() -> None:
    body = chat("hi", prompt_cache_key="key", meta={"user": "u1"})
    assert features(body, {"x-session-id": ["s1", "s2"]}).session == "s1"
    assert features(body, {"x-session-id": [""]}).session == "key"
    assert features(chat("hi", meta={"user": 17})).session == "17"
    assert features(chat("hi", meta=["user"])).session is None


@pytest.mark.parametrize(
    ("headers", "body", "key"),
    [
        ({"x-session-id": ["0198f1c2"]}, chat("hi"), "x-session-id"),
        ({"x-claude-code-session-id": ["0198f1c2"]}, chat("hi", user="other"), "x-claude-code-session-id"),
        ({"x-session-affinity": ["ses_71b2"], "user-agent": ["opencode/1.3"]}, chat("hi"), "x-session-affinity"),
        ({"session-id": ["0198f1c2"]}, chat("hi", prompt_cache_key="other"), "session-id"),
        ({"session_id": ["0198f1c2"]}, chat("hi", prompt_cache_key="other"), "session_id"),
        ({}, chat("hi", session_id="0198f1c2", user="u"), "$.session_id"),
        ({}, chat("hi", prompt_cache_key="0198f1c2", user="u"), "$.prompt_cache_key"),
        ({}, chat("hi", metadata={"user_id": "user_5d1_account__session_0198f1c2"}), "$.metadata.user_id"),
        ({"authorization": ["Bearer key"]}, chat("hi", metadata={"user_id": None}), None),
    ],
)
def test_default_keys_recognise_sessions_of_agents(headers: dict[str, list[str]], body: bytes, key: str | None) -> None:
    table = PoolTable("llama", PickPolicy(DEFAULT_SESSION_KEYS), ())
    request = read(table, headers, body, len(body))
    assert request.session_key == key
    assert (request.session or "0198f1c2").rpartition("_")[2] in ("0198f1c2", "71b2")


@pytest.mark.parametrize("value", ["x" * 1_000_000, "\x00\r\n\x1b" * 100])
def test_a_long_session_key_is_shortened_and_still_distinct(value: str) -> None:
    first, second = (features(b"", {"x-session-id": [value + end]}).session or "" for end in "ab")
    assert first != second
    assert len(first) < 100


def test_bodies_are_not_read_without_need() -> None:
    parsed = read(WITHOUT_BODIES, {"x-session-id": ["s"]}, chat("hi"), 4000)
    assert (parsed.session, parsed.prefix, parsed.model, parsed.prompt_tokens) == ("s", (), None, 1000)


# ── Prompts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_continued_conversation_starts_with_the_same_blocks() -> None:
    first, second = features(chat("a" * 50)), features(chat("a" * 50, "b" * 90))
    assert len(first.prefix) > 2
    assert second.prefix[: len(first.prefix)] == first.prefix
    assert len(second.prefix) > len(first.prefix)


def test_other_adapters_and_other_texts_share_no_block() -> None:
    plain = features(chat("a" * 100))
    adapted = features(json.dumps({**json.loads(chat("a" * 100)), "model": "sql"}).encode())
    assert (plain.adapter, adapted.adapter) == (None, "sql")
    assert not set(plain.prefix) & set(adapted.prefix)
    assert not set(plain.prefix) & set(features(chat("b" + "a" * 99)).prefix)


def test_a_truncated_body_has_the_same_blocks() -> None:
    body = chat("word " * 100, "more " * 1000)
    whole = features(body)
    cut = read(TABLE, {}, body[:400], len(body))
    assert cut.prefix == whole.prefix
    assert cut.prompt_tokens == pytest.approx(len(body) / 4)
    assert cut.model == "llama-3"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "once upon a time " * 8},
        {"prompt": ["once upon a time " * 8]},
        {"prompt": [list(range(100, 200))]},
        {"input": "once upon a time " * 8, "instructions": "be brief"},
        {"system": "be brief", "messages": [{"role": "user", "content": [{"type": "text", "text": "once upon " * 9}]}]},
    ],
)
def test_prompts_of_every_api_are_read(body: dict[str, object]) -> None:
    assert len(features(json.dumps(body).encode()).prefix) > 3


def test_an_image_distinguishes_prompts_but_is_not_text() -> None:
    def about(url: str) -> Features:
        parts = [{"type": "image_url", "image_url": {"url": url * 1000}}, {"type": "text", "text": "what is it?" * 9}]
        return features(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode())

    assert 1000 < about("data:1").prompt_tokens < 1050, "an image counts 1,000, the text 9 times about 4"
    assert about("data:1").prefix[-1] != about("data:2").prefix[-1]


TEXTS = json.loads((FIXTURES / "prompt_texts.json").read_text(encoding="utf-8"))
"""Language → a text and its number of tokens with the tokenizer o200k."""


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("repeated", [1, 100])
def test_length_of_real_text_is_estimated(language: str, repeated: int) -> None:
    text, tokens = TEXTS[language]["text"] * repeated, TEXTS[language]["tokens"] * repeated
    estimated = features(json.dumps({"prompt": text}, ensure_ascii=False).encode()).prompt_tokens
    assert estimated == pytest.approx(tokens, rel=0.2)


@pytest.mark.parametrize("language", ["English", "Chinese"])
def test_rest_of_a_long_body_is_assumed_to_be_like_its_beginning(language: str) -> None:
    body = json.dumps({"prompt": TEXTS[language]["text"] * 300}, ensure_ascii=False).encode()
    assert len(body) > BODY_LIMIT
    cut = read(TABLE, {}, body[:BODY_LIMIT], len(body))
    assert cut.prompt_tokens == pytest.approx(TEXTS[language]["tokens"] * 300, rel=0.1)


def test_text_without_word_boundaries_has_a_minimum_length() -> None:
    assert features(json.dumps({"prompt": "x" * 16_000}).encode()).prompt_tokens == pytest.approx(1000)


def test_a_token_id_counts_about_one_token() -> None:
    ids = list(range(5000, 7000))
    assert features(json.dumps({"prompt": ids}).encode()).prompt_tokens == pytest.approx(2000, rel=0.05)


def test_a_claimed_length_is_capped() -> None:
    claimed = read(TABLE, {}, b"", 10**15)
    assert claimed.prompt_tokens == sum(claimed.length) == MAX_PROMPT_TOKENS
    pictures = [{"type": "image_url"}] * 1000
    body = json.dumps({"messages": [{"role": "user", "content": pictures}]}).encode()
    assert features(body).prompt_tokens == sum(features(body).length) == MAX_PROMPT_TOKENS


# ── Odd input ────────────────────────────────────────────────────────────────────────────────────────────────────────

NESTED = b'{"a":' * 100 + b"1" + b"}" * 100
BAD = {
    "no JSON": b"hello",
    "compressed": b"\x1f\x8b\x08\x00\x00" * 100,
    "list": b"[1, 2]",
    "nested": NESTED,
    "deep": b"[" * 60_000,
    "deep objects": b'{"messages":' * 5_000,
    "long number": b'{"model": ' + b"9" * 50_000 + b"}",
    "surrogates": b'{"model": "\\ud800", "prompt": "\\udfff' + b"x" * 100 + b'"}',
    "half a string": b'{"prompt": "abc\\u12',
    "only a key": b'{"prompt',
    "BOM": b"\xef\xbb\xbf" + chat("hi"),
    "10 MB": chat("x" * 10_000_000),
    "NaN": b'{"prompt": NaN, "messages": {"role": []}}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_odd_bodies_are_read_without_an_error(body: bytes) -> None:
    seen = features(body)
    assert seen.body_bytes == len(body)
    assert seen.prompt_tokens >= 0


@given(st.binary(max_size=400), st.text(max_size=300))
def test_no_client_input_raises_an_exception(body: bytes, value: str) -> None:
    read(TABLE, {"x-session-id": [value]}, body, None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5), st.data())
@pytest.mark.slow
def test_truncated_json_yields_the_values_before_the_cut(document: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(document)
    cut = data.draw(st.integers(0, len(text)))
    seen = partial_json.read(text[:cut].encode())
    assert isinstance(seen, dict) or not cut
    for key, value in list((seen if isinstance(seen, dict) else {}).items())[:-1]:
        assert document[key] == value


ONE_LETTER = features(b'{"prompt": "x"}').prompt_tokens
DEEP = {
    "lists": (b'{"prompt":', b"[", b"1,1", b"]"),
    "contents": (b'{"prompt":', b'{"content":', b'"x"', b"}"),
    "a part": (b'{"prompt":[{"type":"x","a":', b"[", b"", b"]"),
    "a role": (b'{"messages":[{"content":"x","role":', b"[", b"", b"]"),
}


@pytest.mark.parametrize("kind", DEEP)
def test_a_prompt_of_any_depth_has_a_token_estimate(kind: str) -> None:
    before, opening, inside, closing = DEEP[kind]
    after = b"}]}" if before.endswith((b'"a":', b'"role":')) else b"}"
    for depth in range(900, 1000):
        body = before + opening * depth + inside + closing * depth + after
        seen = features(body)
        assert seen.prompt_tokens in (pytest.approx(len(body) / 4), pytest.approx(ONE_LETTER), 1000.0, 0.0)


def test_a_too_deep_prompt_counts_by_body_length() -> None:
    body = b'{"prompt":' + b"[" * 900 + b"1," * 4090 + b"1" + b"]" * 900 + b"}"
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count)
    try:
        seen = features(body)
    finally:
        sys.setprofile(None)
    assert seen.prompt_tokens == pytest.approx(len(body) / 4)
    assert steps < 1000, "one generator per level needs two million calls"


def test_only_the_beginning_of_a_long_body_is_read() -> None:
    body = chat("x" * BODY_LIMIT, prompt_cache_key="behind")
    assert features(body).session is None
    assert len(features(body).prefix) == 8


def test_only_the_beginning_of_a_long_truncated_list_is_kept() -> None:
    kept = partial_json.read(b'{"prompt": [' + b"1," * 30_000)
    assert isinstance(kept, dict)
    assert len(kept["prompt"]) == 1024
