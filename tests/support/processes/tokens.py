"""JSON Web Tokens, valid ones and forged ones: signed with RSA or P-256."""

from __future__ import annotations

import base64
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
ISSUER = "https://issuer.example.com"


@functools.cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """Return an RSA key, which is the same for the same name in this process."""
    assert name
    return rsa.generate_private_key(65537, 2048)


@functools.cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    """Return a P-256 key, which is the same for the same name in this process."""
    assert name
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True, slots=True)
class Issuer:
    """Two keys: `r1` for RS256, `e1` for ES256."""

    rsa: rsa.RSAPrivateKey = field(default_factory=lambda: rsa_key("issuer"))
    ec: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec_key("issuer"))

    def jwks(self) -> str:
        """Return the public keys as the content of `jwks_file`."""
        r, e = self.rsa.public_key().public_numbers(), self.ec.public_key().public_numbers()
        first = {"kty": "RSA", "kid": "r1", "use": "sig", "alg": "RS256", "n": _number(r.n, 256), "e": _number(r.e, 3)}
        second = {"kty": "EC", "kid": "e1", "use": "sig", "alg": "ES256", "crv": "P-256"}
        return json.dumps({"keys": [first, {**second, "x": _number(e.x, 32), "y": _number(e.y, 32)}]})

    def rs256(self, header: Mapping[str, object] | None = None, **claims: Any) -> str:
        """Return a token by RS256; `header` and `claims` replace the valid values, and None removes one."""
        return signed({"alg": "RS256", "kid": "r1", **(header or {})}, _claims(claims), self.rsa)

    def es256(self, header: Mapping[str, object] | None = None, **claims: Any) -> str:
        """Return a token by ES256, with the arguments of `rs256`."""
        return signed({"alg": "ES256", "kid": "e1", **(header or {})}, _claims(claims), self.ec)

    def unsigned(self, alg: str = "none", signature: str = "") -> str:
        """Return a token with valid claims and without a valid signature."""
        return f"{_text({'alg': alg, 'kid': 'r1'}, _claims({}))}.{signature}"

    def with_public_key_as_secret(self) -> str:
        """Return a token by HS256 with the PEM of the public key as its secret: valid for a verifier that trusts a
        token's own `alg`."""
        encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        text = _text({"alg": "HS256", "kid": "r1"}, _claims({}))
        mac = hmac.HMAC(self.rsa.public_key().public_bytes(encoding, form), hashes.SHA256())
        mac.update(text.encode())
        return f"{text}.{b64(mac.finalize())}"


def signed(header: Mapping[str, object], claims: Mapping[str, object] | str, key: Key) -> str:
    """Return a compact JWS by RS256 or ES256, according to the key and independent of the header; the claims may be
    JSON as written."""
    text = _text(header, claims)
    if isinstance(key, rsa.RSAPrivateKey):
        return f"{text}.{b64(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
    r, s = utils.decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries the token."""
    return {"Authorization": f"Bearer {token}"}


def _claims(changes: Mapping[str, Any]) -> dict[str, Any]:
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "inference", "iat": now, "exp": now + 86_400, "org": "acme", **changes}
    return {name: value for name, value in claims.items() if value is not None}


def _text(header: Mapping[str, object], claims: Mapping[str, object] | str) -> str:
    fields = {name: value for name, value in header.items() if value is not None}
    written = claims if isinstance(claims, str) else json.dumps(claims)
    return ".".join(b64(part.encode()) for part in (json.dumps({"typ": "JWT", **fields}), written))


def _number(value: int, size: int) -> str:
    return b64(value.to_bytes(size, "big"))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
