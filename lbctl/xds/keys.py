"""Whether certificates, keys and authorities (PEM) are good for what they are sent for.

OpenSSL judges here what BoringSSL will judge in an Envoy. Nothing of a key is ever shown or written to a disk.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile


def pair_problem(certificate: bytes, key: bytes) -> str:
    """Why a server cannot use this certificate with this key; empty: it can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _file(certificate) as chain, _file(key) as private:
        try:
            context.load_cert_chain(chain, private, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                return "the certificate and the key do not belong together"
            return _reason("these are no certificate and key in PEM", error)
    return ""


def authority_problem(authority: bytes) -> str:
    """Why nothing can be verified with these certificates; empty: it can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except UnicodeDecodeError:
        return "this is no certificate in PEM"
    except (ssl.SSLError, ValueError) as error:
        return _reason("this is no certificate in PEM", error)
    return "" if context.cert_store_stats()["x509"] else "it holds no certificate"


def _no_password() -> str:
    """OpenSSL would ask the terminal for the password of an encrypted key."""
    return "-"


def _reason(words: str, error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return f"{words} ({str(reason).lower().replace('_', ' ')})" if reason else words


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """The path of a file that nobody else can read; OpenSSL reads keys from paths alone."""
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
