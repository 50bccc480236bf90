"""HAProxy verifies tokens and API keys."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from lbctl.ir.pools import Pool
from lbctl.ir.routes import ApiKeys, Auth, RateLimit
from lbctl.ir.secrets import ApiKey, Secrets
from tests.support.haproxy import VERSIONS, checked, replicas, running, view_with_auth
from tests.support.jwks import CURVES, EC, JWT, RSA, ec_jwk, jwks, public_pem, rsa_jwk
from tests.support.processes.ports import free_port
from tests.support.processes.tokens import ISSUER, b64, rsa_key
from tests.support.processes.waiting import eventually

OTHER_RSA = rsa_key("other")
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def claims(**changes: object) -> dict[str, object]:
    """Return valid claims with these changes; `None` removes a claim."""
    content = {"iss": ISSUER, "aud": "inference", "exp": int(time.time()) + 600, "org": "acme", **changes}
    return {name: value for name, value in content.items() if value is not None}


def token(key: PrivateKey | bytes | None, alg: str, content: Mapping[str, object], **header: str) -> str:
    """Return a compact JWS. A key of bytes is a shared secret; None leaves the signature empty."""
    text = f"{b64(json.dumps({'alg': alg, **header}).encode())}.{b64(json.dumps(content).encode())}"
    return f"{text}.{b64(_signature(key, alg, text.encode()))}"


def _signature(key: PrivateKey | bytes | None, alg: str, text: bytes) -> bytes:
    if key is None:
        return b""
    if isinstance(key, bytes):
        mac = hmac.HMAC(key, hashes.SHA256())
        mac.update(text)
        return mac.finalize()
    size = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}[alg[-3:]]
    if isinstance(key, rsa.RSAPrivateKey):
        if alg.startswith("PS"):
            return key.sign(text, padding.PSS(padding.MGF1(size), size.digest_size), size)
        return key.sign(text, padding.PKCS1v15(), size)
    r, s = utils.decode_dss_signature(key.sign(text, ec.ECDSA(size)))
    width = (key.curve.key_size + 7) // 8
    return r.to_bytes(width) + s.to_bytes(width)


def bearer(text: str) -> str:
    return f"Bearer {text}"


def test_haproxy_accepts_the_usable_keys_of_a_set(tmp_path: Path) -> None:
    keys = jwks(rsa_jwk(RSA, use="enc"), ec_jwk("P-521"))
    checked(view_with_auth(free_port(), (Pool("p"),), Auth(jwt=JWT), Secrets(jwks={"jwks.json": keys})), tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_valid_tokens_are_accepted(tmp_path: Path, version: Any) -> None:
    port = free_port()
    quoted = 'it\'s "}" \\ %[env(HOME)] #'
    known = jwks(
        rsa_jwk(RSA, kid="r1", alg="RS256"),
        *(ec_jwk(name, kid=name) for name in CURVES),
        rsa_jwk(OTHER_RSA, kid=quoted, alg="RS512"),
    )
    es = EC["P-256"]
    public = public_pem(RSA.public_key()).encode()
    good = {
        "RS256": token(RSA, "RS256", claims(), kid="r1"),
        "no key id": token(RSA, "RS256", claims()),
        "an odd key id": token(OTHER_RSA, "RS512", claims(), kid=quoted),
        "an array of audiences": token(es, "ES256", claims(aud=[*"1234567", "a+b"]), kid="P-256"),
        "begun": token(es, "ES256", claims(nbf=int(time.time()) - 1), kid="P-256"),
        "in fractions": token(es, "ES256", claims(exp=time.time() + 600.5), kid="P-256"),
    } | {
        alg: token(EC[name], alg, claims(), kid=name)
        for name, alg in zip(CURVES, ("ES256", "ES384", "ES512"), strict=True)
    }
    header, content, signature = good["RS256"].split(".")
    rejected = {
        "nothing": "",
        "no token": "x",
        "two parts": f"{header}.{content}",
        "another signature": f"{header}.{content}.{signature[:-8]}AAAAAAAA",
        "another content": f"{header}.{b64(json.dumps(claims(org='evil')).encode())}.{signature}",
        "alg none": token(None, "none", claims()),
        "alg None": token(None, "None", claims(), kid="r1"),
        "the public key as a secret": token(public, "HS256", claims(), kid="r1"),
        "an algorithm that the key is not for": token(RSA, "RS512", claims(), kid="r1"),
        "an rejected key id": token(RSA, "RS256", claims(), kid="r2"),
        "another key's id": token(RSA, "RS256", claims(), kid=quoted),
        "an rejected key": token(OTHER_RSA, "RS256", claims(), kid="r1"),
        "expired": token(RSA, "RS256", claims(exp=int(time.time()) - 1), kid="r1"),
        "never expiring": token(RSA, "RS256", claims(exp=None), kid="r1"),
        "an expiry that is not a number": token(RSA, "RS256", claims(exp="soon"), kid="r1"),
        "not yet": token(RSA, "RS256", claims(nbf=int(time.time()) + 600), kid="r1"),
        "a beginning that is not a number": token(RSA, "RS256", claims(nbf="now"), kid="r1"),
        "another issuer": token(RSA, "RS256", claims(iss=ISSUER + "/"), kid="r1"),
        "no issuer": token(RSA, "RS256", claims(iss=None), kid="r1"),
    }
    forbidden = {
        "another audience": token(es, "ES256", claims(aud="inferenc"), kid="P-256"),
        "a longer audience": token(es, "ES256", claims(aud="inference2"), kid="P-256"),
        "other audiences": token(es, "ES256", claims(aud=["x", "inference2", "aab"]), kid="P-256"),
        "part of an audience": token(es, "ES256", claims(aud=['x",inference']), kid="P-256"),
        "no audience": token(es, "ES256", claims(aud=None), kid="P-256"),
    }
    with replicas("a1") as (a1,):
        auth = Auth(jwt=JWT, forward_tenant="x-tenant")
        view = view_with_auth(port, (Pool("p", (a1.replica(),)),), auth, Secrets(jwks={"jwks.json": known}))
        with running(view, tmp_path, port, version) as proxy:
            for cases, status in ((good, 200), (rejected, 401), (forbidden, 403)):
                answers = {
                    name: proxy.send(authorization=bearer(text), x_tenant="forged") for name, text in cases.items()
                }
                assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(cases, status)
            absent = proxy.send()
            eventually(lambda: proxy.output.read_text().count('"tenant":"acme"') >= len(good))
            log = proxy.output.read_text()
    assert absent.status == 401
    assert absent.headers["www-authenticate"] == "Bearer"
    assert json.loads(absent.body) == {
        "error": {"message": "no valid credentials", "type": "unauthorized", "param": None, "code": "unauthorized"}
    }
    assert [item["headers"]["x-tenant"] for item in a1.seen] == ["acme"] * len(good)
    assert not any("authorization" in item["headers"] for item in a1.seen)
    assert log.count('"tenant":"acme"') == len(good)
    assert "eyJ" not in log


def test_pss_signatures_are_verified_from_2_8_on(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1") as (a1,):
        secrets = Secrets(jwks={"jwks.json": jwks(rsa_jwk(RSA, alg="PS256"))})
        view = view_with_auth(port, (Pool("p", (a1.replica(),)),), Auth(jwt=JWT), secrets, version=(2, 8))
        with running(view, tmp_path, port, "haproxy-2.8") as proxy:
            statuses = [
                proxy.send(authorization=bearer(token(RSA, alg, claims()))).status for alg in ("PS256", "RS256")
            ]
    assert statuses == [200, 401]


@pytest.mark.parametrize("version", VERSIONS)
def test_token_without_tenant_passes_without_tenant_limit(tmp_path: Path, version: Any) -> None:
    port = free_port()
    secrets = Secrets(jwks={"jwks.json": jwks(ec_jwk("P-256"))})
    auth = Auth(jwt=JWT, forward_tenant="x-tenant", forward_credentials=True)
    invalid_tenants = [None, "Größe", ["acme"], {"id": "acme"}, "", "a\r\nx-admin: 1", "a\x00b"]
    tokens = [token(EC["P-256"], "ES256", claims(org=org)) for org in invalid_tenants]
    named = token(EC["P-256"], "ES256", claims(org='it\'s "100%" of $HOME \\ #1'))
    for limits, status in (((), 200), ((RateLimit("tenant", requests=100, per=1000, burst=100),), 403)):
        with replicas("a1") as (a1,):
            view = view_with_auth(port, (Pool("p", (a1.replica(),)),), auth, secrets, rate_limits=limits)
            with running(view, tmp_path, port, version) as proxy:
                answers = [proxy.send(authorization=bearer(text), x_tenant="forged").status for text in tokens]
                assert answers == [*[status] * (len(invalid_tenants) - 2), 403, 403]
                assert proxy.send(authorization=bearer(named)).status == 200
                tenants = [item["tenant"] for item in proxy.log(len(invalid_tenants) + 1)]
        assert not any("x-tenant" in item["headers"] or "x-admin" in item["headers"] for item in a1.seen[:-1])
        assert a1.seen[-1]["headers"]["x-tenant"] == 'it\'s "100%" of $HOME \\ #1'
        assert a1.seen[-1]["headers"]["authorization"] == bearer(named)
        assert tenants == [None] * len(invalid_tenants) + ['it\'s "100%" of $HOME \\ #1']


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_api_key_or_token_suffices(tmp_path: Path, header: str) -> None:
    port = free_port()
    auth = Auth(ApiKeys("keys", (header,)), JWT, forward_tenant="x-tenant")
    secrets = Secrets({"keys": (ApiKey("beta", key="plain"),)}, {"jwks.json": jwks(ec_jwk("P-256"))})
    good, bad = token(EC["P-256"], "ES256", claims()), token(EC["P-256"], "ES256", claims(iss="x"))
    with replicas("a1") as (a1,):
        view = view_with_auth(port, (Pool("p", (a1.replica(),)),), auth, secrets)
        with running(view, tmp_path, port) as proxy:
            statuses = [
                proxy.send(**{header: "plain"}).status,
                proxy.send(authorization=bearer(good)).status,
                proxy.send(authorization=bearer(bad)).status,
                proxy.send(**{header: "nope"}).status,
            ]
            both = proxy.send(**{"authorization": bearer(bad), "x-api-key": "plain"}).status
    assert statuses == [200, 200, 401, 401]
    assert both == (200 if header == "x-api-key" else 401)
    assert [item["headers"]["x-tenant"] for item in a1.seen][:2] == ["beta", "acme"]
    assert not any({"authorization", header} & item["headers"].keys() for item in a1.seen)


@pytest.mark.parametrize("version", VERSIONS)
def test_api_keys_set_the_tenant_and_are_removed(tmp_path: Path, version: Any) -> None:
    port = free_port()
    digest = hashlib.sha256(b"hashed:key").hexdigest()
    auth = Auth(ApiKeys("keys"), forward_tenant="x-tenant")
    secrets = Secrets({"keys": (ApiKey("acme", sha256=digest), ApiKey("beta", key="plain"))})
    with replicas("a1") as (a1,):
        view = view_with_auth(port, (Pool("p", (a1.replica(),)),), auth, secrets)
        with running(view, tmp_path, port, version) as proxy:
            good = [
                proxy.send(authorization=key, x_tenant="forged") for key in ("Bearer hashed:key", "hashed:key", "plain")
            ]
            bad = [proxy.send(authorization=key) for key in ("nope", digest, f"sha256:{digest}", "#", "", "Bearer ")]
            bad.append(proxy.send())
            tenants = [line["tenant"] for line in proxy.log(10)]
    assert [item.status for item in good] == [200] * 3
    assert [item.status for item in bad] == [401] * 7
    assert [item["headers"]["x-tenant"] for item in a1.seen] == ["acme", "acme", "beta"]
    assert not any("authorization" in item["headers"] for item in a1.seen)
    # the threads of HAProxy write their lines in any order
    assert sorted(tenant for tenant in tenants if tenant) == ["acme", "acme", "beta"]


def test_missing_key_files_reject_all_requests(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1") as (a1,):
        view = view_with_auth(port, (Pool("p", (a1.replica(),)),), Auth(ApiKeys("keys"), JWT), Secrets())
        with running(view, tmp_path, port) as proxy:
            statuses = [
                proxy.send(authorization=text).status for text in ("", "x", bearer(token(RSA, "RS256", claims())))
            ]
    assert statuses == [401] * 3
    assert not a1.seen
