"""Public keys as a JWKS: RSA, and each curve that tokens use."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from lbctl.ir.routes import Jwt
from tests.support.processes.tokens import ISSUER, b64, rsa_key

JWT = Jwt(ISSUER, "jwks.json", ("inference", "a+b"), "org")
RSA = rsa_key("issuer")
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
EC = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}


def rsa_jwk(key: rsa.RSAPrivateKey, **more: str) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "n": b64(numbers.n.to_bytes(key.key_size // 8)), "e": b64(b"\x01\x00\x01"), **more}


def ec_jwk(curve: str, **more: str) -> dict[str, str]:
    numbers, size = EC[curve].public_key().public_numbers(), (CURVES[curve].key_size + 7) // 8
    return {"kty": "EC", "crv": curve, "x": b64(numbers.x.to_bytes(size)), "y": b64(numbers.y.to_bytes(size)), **more}


def jwks(*keys: Mapping[str, object]) -> str:
    return json.dumps({"keys": keys})


def public_pem(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
