from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from lbctl.apply.files import write_bundle
from lbctl.ir.pools import Pool
from lbctl.ir.routes import ApiKeys, Auth
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.targets.haproxy import TARGET
from lbctl.targets.haproxy.jwks import UnfitKeyError, VerificationKey, read, rsa_pem
from tests.support.haproxy import view_with_auth
from tests.support.jwks import CURVES, EC, JWT, RSA, ec_jwk, jwks, public_pem, rsa_jwk
from tests.support.processes.tokens import b64


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2048, 2056, 3072, 4096])
def test_rsa_key_has_the_same_pem_as_in_cryptography(bits: int) -> None:
    key = rsa.generate_private_key(65537, bits).public_key()
    numbers = key.public_numbers()
    assert rsa_pem(numbers.n, numbers.e) == public_pem(key)


@pytest.mark.parametrize("curve", CURVES)
def test_elliptic_key_has_the_same_pem_as_in_cryptography(curve: str) -> None:
    (key,) = read(jwks(ec_jwk(curve, kid="k")), (2, 6))
    assert key == VerificationKey(
        public_pem(EC[curve].public_key()), {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[curve], "k"
    )


UNFIT: dict[str, Mapping[str, object]] = {
    "for encryption": rsa_jwk(RSA, use="enc"),
    "another kind": {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": b64(ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()),
    },
    "a short modulus": {"kty": "RSA", "n": b64(b"\xff" * 128), "e": "AQAB"},
    "no exponent": {"kty": "RSA", "n": rsa_jwk(RSA)["n"]},
    "not base64url": {**rsa_jwk(RSA), "n": "a+b/"},
    "an algorithm of another kind": rsa_jwk(RSA, alg="ES256"),
    "an algorithm of secrets": rsa_jwk(RSA, alg="HS256"),
    "none": rsa_jwk(RSA, alg="none"),
    "a list for an algorithm": {**rsa_jwk(RSA), "alg": ["RS256"]},
    "PSS before 2.8": rsa_jwk(RSA, alg="PS256"),
    "a curve's wrong algorithm": ec_jwk("P-384", alg="ES256"),
    "an rejected curve": {**ec_jwk("P-256"), "crv": "secp256k1"},
    "no point of the curve": {**ec_jwk("P-256"), "y": b64(b"\x01" * 32)},
    "a short coordinate": {**ec_jwk("P-256"), "y": b64(b"\x01" * 31)},
    "a kid with a line feed": ec_jwk("P-256", kid="a\nb"),
    "a kid that is no text": {**ec_jwk("P-256"), "kid": 7},
}


@pytest.mark.parametrize("case", UNFIT)
def test_unusable_key_is_left_out_and_reported(case: str) -> None:
    view = view_with_auth(
        80, (Pool("p"),), Auth(jwt=JWT), Secrets(jwks={"jwks.json": jwks(UNFIT[case], ec_jwk("P-521"))})
    )
    assert isinstance(read(view.jwks["r"], (2, 6))[0], UnfitKeyError)
    assert [item.name for item in TARGET.render(view).files] == ["haproxy.cfg", "haproxy-jwt-r-2.pem"]
    (warning,) = TARGET.render(view).diagnostics
    assert (warning.code, warning.severity, warning.path) == (
        "LB444",
        "warning",
        ("routes", "r", "auth", "jwt", "jwks_file"),
    )
    assert warning.message.startswith("key 1 of the set")


def test_api_keys_are_hashes_in_a_private_file(tmp_path: Path) -> None:
    auth = Auth(ApiKeys("keys"))
    secrets = Secrets({"keys": (ApiKey("beta", key="plain"),)})
    bundle = TARGET.render(view_with_auth(80, (Pool("p"),), auth, secrets))
    write_bundle(bundle, str(tmp_path))
    place = tmp_path / "haproxy-api-keys-r.map"
    assert place.read_text() == f"{hashlib.sha256(b'plain').hexdigest()} beta\n"
    assert place.stat().st_mode & 0o777 == 0o600
    assert "plain" not in bundle.main.text
