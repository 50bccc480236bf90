"""No value of a fleet file becomes more than one value of a proxy's configuration.

The corpus is written into every value and every name of the schema. A field that accepts one of its strings must be on
the closed list of free texts. The targets quote these texts, and in `tests/e2e/traffic/test_free_text.py` the real
proxies return them unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from lbctl.model.fleet import Fleet
from tests.support.fleet import reading
from tests.support.paths import FIXTURES
from tests.support.schema import NAME, leaves, places

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

FULL = FIXTURES / "full.yaml"
CORPUS = (
    "a\nb", "a\r\nX: y", "a\rb", "\0", "a\0b", "\x1f", "\x7f", "\x85", "\u2028", "\u202e", "\ufeff", "\ud800",
    "a; return 200 x", "a;", "a}", "a{", "{", "}", '"', "'", '"; return 200 x; #"', "'; x", "\\", "a\\", '\\"', "`id`",
    "#", "a #b", "$x", "${x", "${x}", "$(id)", "%", "%h", "%%", "%[env(HOME)]", "%[lua.f]", "%REQ(:path)%", "{{7*7}}",
    "{% include 'x' %}", "}}\nssl_engine x;\nhttp{", "include /etc/passwd", "load_module", "lua-load", "perl_set",
    "a\nlisten evil", "../", "a/../../b", "/../etc/passwd", "-flag", "--flag", "", " ", " a", "a ", "a\tb", "a" * 5000,
    "a" * 12_001, "\uff50ool", "p\u043e\u043el", "é", "*", "~", "|", "<", ">", "@", "!", "&", "(", "[", ",", "=", ":",
    "a:b", "::1%a;b",
)  # fmt: skip
FREE = {
    # printable ASCII, or more
    "routes.*.match.headers.*", "routes.*.headers.request.set.*", "routes.*.headers.response.set.*",
    "routes.*.match.model", "pools.*.model.name", "pools.*.model.adapters",
    "pools.*.upstream.headers.*", "pools.*.upstream.headers.*.prefix",
    "routes.*.pin.equals", "routes.*.respond.body", "pools.*.health.active.http.body_contains",
    # the characters of a path, or of a regular expression
    "routes.*.match.path", "routes.*.match.path_prefix", "routes.*.rewrite.path_prefix", "routes.*.match.path_regex",
    "pools.*.health.active.http.path", "pools.*.upstream.path_prefix",
    # the characters of a URL
    "routes.*.auth.jwt.issuer", "routes.*.auth.jwt.audiences",
    # never written into a proxy's configuration
    "pools.*.telemetry.sources.url", "pools.*.telemetry.sources.query", "pools.*.telemetry.sources.match_labels.*",
    "pools.*.replicas.telemetry.sources.url", "pools.*.replicas.telemetry.sources.query",
    "pools.*.replicas.telemetry.sources.match_labels.*", "proxies.*.reload.command", "proxies.*.node_san",
    "routes.*.rollout.analysis.metrics.source", "routes.*.rollout.analysis.metrics.query",
}  # fmt: skip
"""Texts that only a target's quoting keeps harmless. A new one needs a test with the real proxies first."""
WORDS = {
    # files
    "listeners.*.tls.certificates.certificate", "listeners.*.tls.certificates.key", "listeners.*.tls.client_ca",
    "listeners.*.tls.client_crl",
    "listeners.*.access_log.path", "routes.*.auth.api_keys.file", "routes.*.auth.jwt.jwks_file",
    "routes.*.auth.basic.file", "routes.*.auth.basic.realm", "routes.*.auth.external.url", "pools.*.tls.ca",
    "pools.*.upstream.headers.*.file", "pools.*.credentials.file",
    "pools.*.tls.certificate", "pools.*.tls.key", "pools.*.discovery.file.path", "proxies.*.config",
    "proxies.*.chroot", "proxies.*.kubernetes.secrets.<name>",
    "proxies.*.include.http", "proxies.*.include.server.*", "proxies.*.include.location.*", "proxies.*.include.global",
    "proxies.*.include.frontend.*", "proxies.*.include.backend.*", "proxies.*.include.http_filters",
    "pools.*.discovery.kubernetes.kubeconfig",
    "proxies.*.runtime_api",
    "control.xds.tls.certificate", "control.xds.tls.key", "control.xds.tls.client_ca", "control.xds.tls.client_crl",
    "control.api.token_file", "control.picker.key_file", "control.store.key_file",
    "control.api.tls.certificate", "control.api.tls.key", "control.state", "control.store.password.file",
    "control.store.tls.ca", "control.store.tls.certificate", "control.store.tls.key", "control.store.key_prefix",
    # names and texts of other programs
    "pools.*.discovery.kubernetes.context", "control.store.user",
    "gpus.<name>", "pools.*.replicas.gpu", "pools.*.discovery.dns.gpu",
    "pools.*.labels.<name>", "pools.*.labels.*", "pools.*.replicas.labels.<name>", "pools.*.replicas.labels.*",
    "pools.*.model.version",
    "pools.*.health.active.grpc.service", "listeners.*.tracing.service", "proxies.*.nodes",
    "pools.*.telemetry.sources.unit", "pools.*.replicas.telemetry.sources.unit",
    "pools.*.telemetry.sources.metric", "pools.*.replicas.telemetry.sources.metric",
    "pools.*.telemetry.sources.match_labels.<name>", "pools.*.replicas.telemetry.sources.match_labels.<name>",
}  # fmt: skip
"""Words with more than a name's characters, but none that opens, closes, ends, quotes or expands anything."""
_WORD = re.compile(r"[A-Za-z0-9 ._/:@+*?=,~-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_TEXT = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff\ufeff]*")
_MAX_CHARACTERS = {"routes.*.respond.body": 12_000}
"""The longest text for a field; the default is 2,000 characters."""
LEAVES = list(leaves())


@cache
def document() -> dict[str, Any]:
    fleet: dict[str, Any] = yaml.safe_load(FULL.read_text())
    return fleet


@cache
def path_of(leaf: tuple[str, ...]) -> tuple[str | int, ...]:
    """Return the path of one such value or name in the full fleet."""
    return next(places(document(), leaf))


@cache
def adapter(section: str) -> TypeAdapter[Any]:
    """Return a validator of one section. It is faster than a validator of a complete file."""
    return TypeAdapter(Fleet.model_fields[section].annotation)


def changed(leaf: tuple[str, ...], text: str, *, behind: bool = False) -> Any:
    """Return a section with one object of the full fleet, with this text instead of one value or name, or behind it."""
    first, *rest = path_of(leaf)
    if not rest:
        return text
    section = document()[str(first)]
    return with_text(
        section if first == "control" else {rest[0]: section[rest[0]]}, rest, leaf[-1] == NAME, text, behind
    )


def with_text(tree: Any, path: Sequence[str | int], is_name: bool, text: str, behind: bool) -> Any:
    """Return a copy of the tree with the text at this path. Parts that do not change are shared."""
    step, *rest = path
    copy = list(tree) if isinstance(tree, list) else dict(tree)
    if rest:
        copy[step] = with_text(tree[step], rest, is_name, text, behind)
    elif is_name:
        copy[f"{step}{text}" if behind else text] = copy.pop(step)
    else:
        copy[step] = f"{tree[step]}{text}" if behind else text
    return copy


def takes(leaf: tuple[str, ...], text: str, *, behind: bool = False) -> bool:
    try:
        adapter(leaf[0]).validate_python(changed(leaf, text, behind=behind))
    except ValidationError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("leaf", LEAVES, ids=".".join)
def test_field_accepts_only_the_text_of_its_kind(leaf: tuple[str, ...]) -> None:
    field = ".".join(leaf)
    allowed = _TEXT if field in FREE else _WORD if field in WORDS else _NAME
    for text in CORPUS:
        for behind in (False, True):
            if takes(leaf, text, behind=behind):
                assert allowed.fullmatch(text), f"{field} takes {text!r}"
                assert len(text) <= _MAX_CHARACTERS.get(field, 2000)


@pytest.mark.slow
def test_lists_have_only_fields_that_need_it() -> None:
    fields = {".".join(leaf): leaf for leaf in LEAVES}
    for listed, less in ((FREE, _WORD), (WORDS, _NAME)):
        for field in sorted(listed):
            texts = (text for text in CORPUS if not less.fullmatch(text))
            taken = (takes(fields[field], text) or takes(fields[field], text, behind=True) for text in texts)
            assert any(taken), f"{field} is stricter than its list"


@pytest.mark.parametrize("leaf", LEAVES, ids=".".join)
def test_refused_value_is_reported_at_its_position(leaf: tuple[str, ...]) -> None:
    refused = next(text for text in ('";{', *CORPUS) if text.isprintable() and not takes(leaf, text))
    file = json.dumps({"version": 1} | {leaf[0]: changed(leaf, refused)}, indent=1)
    source, diagnostics = reading(file)
    assert source is None
    positions = [item.position for item in diagnostics if item.position]
    lines = file.splitlines()
    assert any(lines[at.line - 1][at.column - 1 :].startswith(json.dumps(refused)) for at in positions), diagnostics
