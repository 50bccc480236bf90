"""Public keys as PEM: the numbers of a JSON Web Key in the encoding that HAProxy reads (SubjectPublicKeyInfo).

This module only encodes; the caller decides whether a key may verify anything.
"""

from __future__ import annotations

import base64

_RSA = bytes.fromhex("06092a864886f70d010101" + "0500")
_EC = bytes.fromhex("06072a8648ce3d0201")
_CURVES = {
    "P-256": bytes.fromhex("06082a8648ce3d030107"),
    "P-384": bytes.fromhex("06052b81040022"),
    "P-521": bytes.fromhex("06052b81040023"),
}
_INTEGER, _BITS, _SEQUENCE = 0x02, 0x03, 0x30


def rsa(modulus: int, exponent: int) -> str:
    """Return the PEM of an RSA key; both numbers are > 0."""
    return _pem(_RSA, _der(_SEQUENCE, _integer(modulus), _integer(exponent)))


def ec(curve: str, x: bytes, y: bytes) -> str:
    """Return the PEM of a key on `curve` (P-256, P-384 or P-521); the coordinates have the full length of its field."""
    return _pem(_EC + _CURVES[curve], b"\x04" + x + y)


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
