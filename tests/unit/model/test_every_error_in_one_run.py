"""A bad value neither hides other errors nor causes further errors elsewhere."""

from __future__ import annotations

from tests.support.fleet import compiling

FLEET = """\
version: 1
listeners:
  g: {bind: "127.0.0.1:80"}
  h: {bnd: "127.0.0.1:81"}
routes:
  r: {match: {path: /a, path_prefix: /b}, pool: nope}
  s: {pool: p, respond: {status: 200}}
  t: {match: {path: /t}, pool: broken, listeners: [h, i]}
pools:
  broken: {replica: []}
  p:
    replicas:
      - {address: "a:1", wieght: 1}
      - {address: "b", gpu: L4}
      - {address: "c:3", gpu: A100}
  q: {replicas: [{address: "a:1", gpu: L4}, {address: "b:2"}]}
proxies: {x: {kind: ngnix}}
"""


def test_model_and_compiler_errors_are_reported_together() -> None:
    fleet, diagnostics = compiling(FLEET)
    assert fleet is None
    assert [f"{item.position} {item.code} {'.'.join(map(str, item.path))}" for item in diagnostics] == [
        "-:4:3 LB014 listeners.h.bind",
        "-:4:7 LB011 listeners.h.bnd",
        "-:6:7 LB015 routes.r.match",
        "-:6:49 LB101 routes.r.pool",
        "-:7:3 LB015 routes.s",
        "-:8:55 LB102 routes.t.listeners.1",
        "-:10:12 LB011 pools.broken.replica",
        "-:13:26 LB011 pools.p.replicas.0.wieght",
        "-:14:19 LB013 pools.p.replicas.1.address",
        "-:15:31 LB204 pools.p.replicas.2.gpu",
        "-:16:45 LB203 pools.q.replicas.1",
        "-:17:21 LB103 proxies.x.kind",
    ]


def test_a_list_in_place_of_a_text_suggests_the_text() -> None:
    fleet = """\
version: 1
listeners: {g: {bind: "127.0.0.1:80"}}
routes: {r: {match: {}, pool: p, fallback: [provider], listeners: [[g]]}}
pools:
  p: {replicas: [{address: "a:1"}]}
  provider: {replicas: [{address: "c:3"}]}
proxies: {x: {kind: nginx}}
"""
    hints = {".".join(map(str, item.path)): item.hint for item in compiling(fleet)[1] if item.code == "LB013"}
    assert hints == {
        "routes.r.fallback": "write one pool name, for example `fallback: provider`",
        "routes.r.listeners.0": "write one value, for example `g`",
    }
