"""Converts a JSON Web Key Set's keys for HAProxy: one PEM per key, with the only algorithm that it may verify.

A key without an algorithm verifies only its type's usual algorithm, never the algorithm named by a token. Unusable keys
are omitted. The reason is reported, but never any part of the key. Tokens signed with such a key are rejected.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.targets.target import Version

_RSA = {"RS256", "RS384", "RS512"}
_PSS = {"PS256", "PS384", "PS512"}
_PSS_SINCE = (2, 8)
_MIN_RSA_BITS = 2048
"""Minimum size of an RSA key in bits (RFC 7518, section 3.3)."""
_BASE64 = re.compile(r"[A-Za-z0-9_-]{1,4096}", re.ASCII)
_KID = re.compile(r"[ -~]{0,1024}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Curve:
    """The curve y² = x³ - 3x + b over the prime p."""

    algorithm: str
    bytes: int
    p: int
    b: int

    def holds(self, x: int, y: int) -> bool:
        return x < self.p and y < self.p and (y * y - (x**3 - 3 * x + self.b)) % self.p == 0


_CURVES = {
    "P-256": _Curve(
        "ES256",
        32,
        2**256 - 2**224 + 2**192 + 2**96 - 1,
        0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
    ),
    "P-384": _Curve(
        "ES384",
        48,
        2**384 - 2**128 - 2**96 + 2**32 - 1,
        0xB3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE8141120314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF,
    ),
    "P-521": _Curve(
        "ES512",
        66,
        2**521 - 1,
        0x0051953EB9618E1C9A1F929A21A0B68540EEA2DA725B99B315F3B8B489918EF109E156193951EC7E937B1652C0BD3BB1BF073573DF883D2C34F1EF451FD46B503F00,
    ),
}
"""The curves of FIPS 186-4, appendix D.1.2."""
# The numbers of algorithms and types in the encoding for HAProxy (SubjectPublicKeyInfo).
_RSA_OID = bytes.fromhex("06092a864886f70d010101" + "0500")
_EC_OID = bytes.fromhex("06072a8648ce3d0201")
_CURVE_OIDS = {
    "P-256": bytes.fromhex("06082a8648ce3d030107"),
    "P-384": bytes.fromhex("06052b81040022"),
    "P-521": bytes.fromhex("06052b81040023"),
}
_INTEGER, _BITS, _SEQUENCE = 0x02, 0x03, 0x30


class UnfitKeyError(Exception):
    """HAProxy cannot use this key for verification. The message states the reason."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key with which HAProxy can verify tokens."""

    pem: str
    """Public key in PEM."""
    algorithm: str
    kid: str
    """Key ID of the tokens that the key verifies; empty if it verifies tokens with any key ID."""


def read(text: str, version: Version) -> tuple[VerificationKey | UnfitKeyError, ...]:
    """Return, for each key of the set in order, the converted key or the reason why HAProxy cannot use it.

    `text` is a JSON object whose `keys` is a list of objects.
    """
    return tuple(_key_or_error(item, version) for item in json.loads(text)["keys"])


def _key_or_error(item: Mapping[str, object], version: Version) -> VerificationKey | UnfitKeyError:
    try:
        return _key(item, version)
    except UnfitKeyError as error:
        return error


def _key(item: Mapping[str, object], version: Version) -> VerificationKey:
    if item.get("use", "sig") != "sig":
        raise UnfitKeyError("it is not a signature key")
    kid = item.get("kid", "")
    if not isinstance(kid, str) or not _KID.fullmatch(kid):
        raise UnfitKeyError("its kid is not printable ASCII")
    if item["kty"] == "RSA":
        pem_text, algorithm = _rsa(item, version)
    elif item["kty"] == "EC":
        pem_text, algorithm = _ec(item)
    else:
        raise UnfitKeyError("HAProxy supports only RSA and EC keys")
    return VerificationKey(pem_text, algorithm, kid)


def _rsa(item: Mapping[str, object], version: Version) -> tuple[str, str]:
    algorithm = str(item.get("alg", "RS256"))
    if algorithm in _PSS and version < _PSS_SINCE:
        raise UnfitKeyError("HAProxy supports PS256, PS384 and PS512 only as of 2.8")
    if algorithm not in _RSA | _PSS:
        raise UnfitKeyError("its alg is not an RSA algorithm")
    modulus, exponent = (int.from_bytes(_bytes(item, name)) for name in ("n", "e"))
    if modulus.bit_length() < _MIN_RSA_BITS or exponent < 3:
        raise UnfitKeyError(f"it has fewer than {_MIN_RSA_BITS} bits, or no exponent")
    return rsa_pem(modulus, exponent), algorithm


def _ec(item: Mapping[str, object]) -> tuple[str, str]:
    name = item.get("crv")
    curve = _CURVES.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or curve is None:
        raise UnfitKeyError("its curve is not P-256, P-384 or P-521")
    if item.get("alg", curve.algorithm) != curve.algorithm:
        raise UnfitKeyError("its alg does not match its curve")
    x, y = (_bytes(item, axis) for axis in ("x", "y"))
    if {len(x), len(y)} != {curve.bytes} or not curve.holds(int.from_bytes(x), int.from_bytes(y)):
        raise UnfitKeyError("it is not a point on its curve")
    return ec_pem(name, x, y), curve.algorithm


def _bytes(item: Mapping[str, object], name: str) -> bytes:
    value = item.get(name)
    if not isinstance(value, str) or not _BASE64.fullmatch(value) or len(value) % 4 == 1:
        raise UnfitKeyError(f"its {name} is not base64url")
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))


def rsa_pem(modulus: int, exponent: int) -> str:
    """Return the PEM of an RSA key. `modulus` and `exponent` must be positive."""
    return _pem(_RSA_OID, _der(_SEQUENCE, _integer(modulus), _integer(exponent)))


def ec_pem(curve: str, x: bytes, y: bytes) -> str:
    """Return the PEM of a key on `curve` (P-256, P-384 or P-521).

    The coordinates must have the full length of the curve's field.
    """
    return _pem(_EC_OID + _CURVE_OIDS[curve], b"\x04" + x + y)


def _pem(algorithm: bytes, key: bytes) -> str:
    info = _der(_SEQUENCE, _der(_SEQUENCE, algorithm), _der(_BITS, b"\x00", key))
    text = base64.b64encode(info).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join(["-----BEGIN PUBLIC KEY-----", *lines, "-----END PUBLIC KEY-----", ""])


def _integer(value: int) -> bytes:
    """Return the DER of a positive integer, with a leading zero bit for the sign."""
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1))


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content
