"""Users with passwords: a known pair is accepted as that tenant; any other request gets a challenge."""

from __future__ import annotations

from base64 import b64encode

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_USERS = "# models\nalice: 's3cret: of #alice $x %[src] \"q\"'\nbob: opensesame\n"
_ALICE = 's3cret: of #alice $x %[src] "q"'


def _sent(text: str, scheme: str = "Basic ") -> dict[str, str]:
    return {"authorization": scheme + b64encode(text.encode()).decode()}


def test_only_a_user_with_password_is_accepted(kind: Kind) -> None:
    auth = {"basic": {"file": "users", "realm": "the models"}, "forward_tenant": "x-user"}
    routes = {
        "open": {"match": {"path_prefix": "/open"}, "pool": "pool"},
        "keyed": {"match": {"path_prefix": "/keyed"}, "pool": "pool", "auth": {"api_keys": {"file": "keys"}}},
        "gone": {"match": {"path_prefix": "/gone"}, "pool": "pool", "auth": {"basic": {"file": "none"}}},
    }
    encoded = _sent("bob:opensesame")["authorization"].split()[1]
    wrong = [
        {}, _sent("bob:"), _sent("bob"), _sent("bob:Opensesame"), _sent("bob:opensesame "), _sent("BOB:opensesame"),
        _sent(f"bob:{_ALICE}"), _sent("alice:opensesame"), _sent("bob:opensesame", ""),
        _sent("bob:opensesame", "Bearer "),
        {"authorization": encoded.lower()}, {"authorization": f"Basic {encoded.swapcase()}"},
        {"authorization": "Basic bob:opensesame"}, {"authorization": "Basic"}, {"authorization": f"Basic {encoded}x"},
        {"x-user": "bob"}, {"proxy-authorization": f"Basic {encoded}"},
    ]  # fmt: skip
    files = {"users": _USERS, "keys": "sk-1: acme\n"}
    with (
        replicas("a") as (a,),
        running(kind, fleet_of([a], route={"auth": auth}, routes=routes), files=files) as gateway,
    ):
        refused = [gateway.get("/v1/x", {**headers, "x-user": "root"}) for headers in wrong]
        refused += [gateway.get(path) for path in ("//", "/./", "/%2e/", "/open/../v1", "/open/%2e%2e/v1")]
        assert a.requests == 0
        accepted = [
            gateway.get("/v1/x", [*_sent(pair, scheme).items(), ("x-user", "root"), ("X_User", "root")])
            for pair, scheme in (
                ("bob:opensesame", "Basic "),
                ("bob:opensesame", "basic "),
                (f"alice:{_ALICE}", "Basic "),
            )
        ]
        keyed, gone, open_ = gateway.get("/keyed", _sent("bob:opensesame")), gateway.get("/gone"), gateway.get("/open")

        def logged() -> set[str | None]:
            return {line["tenant"] for line in gateway.access_log(len(wrong)) if line["status"] == 200}

        eventually(lambda: "bob" in logged())
        tenants = logged()
        text = gateway.proxy.logs()
    assert [answer.status for answer in refused[: len(wrong)]] == [401] * len(wrong)
    assert {answer.header("www-authenticate") for answer in refused if answer.status == 401} == {
        'Basic realm="the models", charset="UTF-8"'
    }
    assert {answer.json["error"]["type"] for answer in refused[: len(wrong)]} == {"unauthorized"}
    assert [answer.status for answer in accepted] == [200, 200, 200]
    seen = [a.seen[index] for index in range(3)]
    assert [[value for name, value in item.headers if name.lower().replace("_", "-") == "x-user"] for item in seen] == [
        ["bob"], ["bob"], ["alice"],
    ]  # fmt: skip
    assert [item.header("authorization") for item in seen] == [None] * 3
    assert (keyed.status, keyed.header("www-authenticate")) == (401, "Bearer")
    assert (gone.status, gone.header("www-authenticate")) == (401, 'Basic realm="restricted", charset="UTF-8"')
    assert open_.ok
    assert tenants <= {"bob", "alice", None}
    assert not [secret for secret in ("opensesame", "s3cret", encoded) if secret in text]
