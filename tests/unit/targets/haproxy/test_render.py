from __future__ import annotations

import re

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, Certificate, Listener, ListenerTls, PathMatch, Rule
from lbctl.ir.pools import (
    Pool,
    Replica,
)
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Route, Share, StickySplit
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets.features import FEATURES
from lbctl.targets.haproxy import TARGET, quote
from lbctl.targets.token import UnquotedError
from tests.support.fleet import compiled
from tests.support.haproxy import (
    everything,
    forward,
    make_view,
    two_replicas,
    view_of_everything,
)


def test_same_view_gives_the_same_bytes() -> None:
    view = view_of_everything()
    assert TARGET.render(view) == TARGET.render(view)


def test_each_feature_has_a_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


def test_lines_have_the_path_of_their_value() -> None:
    main = TARGET.render(view_of_everything()).main
    lines = main.text.split("\n")
    line_of = {path: lines[number - 1].strip() for number, path in main.sources.items()}
    assert line_of["pools", "limits", "replicas", "r2"].startswith("server r2 '127.0.0.1:9002'")
    assert line_of["listeners", "pub", "max_connections"] == "maxconn 50"


def test_error_with_line_is_reported_at_its_replica() -> None:
    bundle = TARGET.render(view_of_everything())
    path = ("pools", "limits", "replicas", "r1")
    line = next(number for number, owner in bundle.main.sources.items() if owner == path)
    output = (
        f"[ALERT]    (12) : config : [/tmp/haproxy.cfg:{line}] : 'server pool_limits/r1' : unknown keyword 'wait'.\n"
        "[ALERT]    (12) : config : Error(s) found in configuration file : /tmp/haproxy.cfg\n"
    )
    (complaint,) = TARGET.complaints(output, bundle)
    assert (complaint.line, complaint.path) == (line, path)
    assert "wait" in complaint.message


def test_error_without_line_is_reported_at_its_replica() -> None:
    bundle = TARGET.render(view_of_everything())
    output = (
        "[ALERT]    (12) : config : Proxy 'pool_limits', server 'r1' [x:3] verify is enabled but no CA file specified."
    )
    (complaint,) = TARGET.complaints(output, bundle)
    assert complaint.path == ("pools", "limits", "replicas", "r1")


def test_key_file_with_another_name_is_an_error() -> None:
    tls = ListenerTls((Certificate("a.crt", "a.key"), Certificate("b.pem", "b.key"), Certificate("c.pem", "c.pem")))
    view = make_view(
        (Listener("pub", Address("127.0.0.1", 1), tls, rules=everything()),), (forward("p"),), (two_replicas("p"),)
    )
    (error,) = TARGET.render(view).diagnostics
    assert (error.code, error.severity) == ("LB402", "error")
    assert error.path == ("listeners", "pub", "tls", "certificates", 1, "key")
    assert "b.pem.key" in error.hint


def test_sticky_split_draws_by_the_hash_of_the_header() -> None:
    split = Forward((Share("p", 3), Share("q", 1)), sticky=StickySplit("header", "x-user"))
    listener = Listener("pub", Address("127.0.0.1", 1), rules=everything(), access_log=AccessLog(format="none"))
    view = make_view((listener,), (Route("r", split, ("pub",)),), (two_replicas("p"), two_replicas("q")))
    text = TARGET.render(view).main.text
    assert 'req.fhdr("x-user"),djb2(1),mod(4)' in text
    assert "log-format" not in text


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "\x7f", ""])
def test_word_with_control_character_is_refused(text: str) -> None:
    with pytest.raises(UnquotedError):
        quote.word(text)


@pytest.mark.parametrize("text", ["a/b", "a b", "a#b", "-a", "a\n", "", "é"])
def test_name_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(UnquotedError):
        quote.name(text)


def test_ten_thousand_replicas_are_rendered() -> None:
    members = tuple(Replica(f"r{i}", Address("10.0.0.1", 1000 + i)) for i in range(100))
    pools = tuple(Pool(f"p{i}", members) for i in range(100))
    routes = tuple(Route(pool.name, Forward((Share(pool.name, 1),)), ("pub",)) for pool in pools)
    rules = tuple(Rule(route.name, path=PathMatch("prefix", f"/{route.name}")) for route in routes)
    view = make_view((Listener("pub", Address("127.0.0.1", 1), rules=rules),), routes, pools)
    assert TARGET.render(view).main.text.count("    server ") == 10_000


def test_pools_of_a_listener_share_the_longest_timeout_of_a_pick() -> None:
    """HAProxy forgets `default-path` when it reads a file, so it finds the file of only one engine."""
    text = """\
version: 1
listeners: {front: {bind: "127.0.0.1:80"}}
routes: {chat: {match: {path_prefix: /chat}, pool: llama}, code: {match: {path_prefix: /code}, pool: coder}}
pools:
  llama:
    balance: {algorithm: pick, pick: {timeout: 150ms}}
    replicas: [{address: "10.0.0.1:80"}]
  coder:
    balance: {algorithm: pick, pick: {timeout: 400ms}}
    replicas: [{address: "10.0.0.2:80"}]
"""
    bundle = TARGET.render(view(Snapshot(compiled(text).topology), Proxy("edge", "haproxy", TARGET.versions[0])))
    (engine,) = re.findall(r"filter spoe engine (\S+) config", bundle.main.text)
    assert set(re.findall(r"send-spoe-group (\S+)", bundle.main.text)) == {engine}
    (spoe,) = (file.text for file in bundle.files if file.name == "picker.spoe")
    assert re.findall(r"spoe-agent (\S+)|timeout processing (\S+)", spoe) == [(engine, ""), ("", "400ms")]


def test_picker_gets_the_body_for_a_session_key_without_prefix() -> None:
    text = """\
version: 1
listeners: {front: {bind: "127.0.0.1:80"}}
routes: {chat: {match: {path: /chat}, pool: llama}}
pools:
  llama:
    balance: {algorithm: pick, pick: {session: [{body: $.session_id}], prefix: "off"}}
    replicas: [{address: "10.0.0.1:80"}]
"""
    bundle = TARGET.render(view(Snapshot(compiled(text).topology), Proxy("edge", "haproxy", TARGET.versions[0])))
    assert any("body=req.body,bytes(0,40960)" in file.text for file in bundle.files)
