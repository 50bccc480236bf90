"""Checks that PEM certificates, private keys, CA bundles and revocation lists are usable.

OpenSSL performs the same checks here as BoringSSL does in Envoy. No part of a key is logged or written to disk.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile


def pair_problem(certificate: bytes, key: bytes) -> str:
    """Return the reason why a server cannot use this certificate with this key, or an empty string if it can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _file(certificate) as chain, _file(key) as private:
        try:
            context.load_cert_chain(chain, private, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                return "the certificate and the key do not match"
            return _reason("these files do not contain a PEM certificate and key", error)
    return ""


def authority_problem(authority: bytes) -> str:
    """Return the reason why these certificates cannot verify a peer, or an empty string if they can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except UnicodeDecodeError:
        return "this is not a PEM certificate"
    except (ssl.SSLError, ValueError) as error:
        return _reason("this is not a PEM certificate", error)
    return "" if context.cert_store_stats()["x509"] else "it contains no certificate"


def crl_problem(lists: bytes) -> str:
    """Return the reason why these revocation lists cannot be used, or an empty string if they can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with _file(lists) as name:
        try:
            context.load_verify_locations(cafile=name)
        except ssl.SSLError as error:
            return _reason("not a PEM revocation list", error)
    return "" if context.cert_store_stats()["crl"] else "contains no revocation list"


def _no_password() -> str:
    """Return a wrong password, because without one, OpenSSL prompts on the terminal if the key is encrypted."""
    return "-"


def _reason(message: str, error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return f"{message} ({str(reason).lower().replace('_', ' ')})" if reason else message


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """Yield the path of a private file with these contents, because OpenSSL can load keys only from files."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pem", os.MFD_CLOEXEC), "wb") as memory:
            memory.write(data)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with NamedTemporaryFile(prefix="lbctl-") as file:
            file.write(data)
            file.flush()
            yield file.name
