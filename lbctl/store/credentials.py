"""What a store is reached with: the password of a file and the TLS context. Neither is ever logged or saved."""

from __future__ import annotations

import ssl
from pathlib import Path

from lbctl.base.errors import reason_of
from lbctl.compile.files import read_regular
from lbctl.ir.proxies import Store
from lbctl.store.interface import UnusableError

_MAX_FILE_BYTES = 4096
"""Bytes of a file with a password."""


def password_of(store: Store) -> str | None:
    """Return the password, None where the store has none. Raises UnusableError where its file cannot be read."""
    if store.password_file is None:
        return None
    try:
        password = read_regular(Path(store.password_file), _MAX_FILE_BYTES).decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not text"
        raise UnusableError(f"the password of the store cannot be read: {store.password_file}: {reason}") from None
    if not password:
        raise UnusableError(f"the file of the store's password is empty: {store.password_file}")
    return password


def tls_of(store: Store) -> ssl.SSLContext:
    """Return the context that verifies the store's certificate. Raises UnusableError where a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=store.ca)
        if store.certificate is not None:
            context.load_cert_chain(store.certificate, store.key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (store.ca, store.certificate, store.key)))
        raise UnusableError(f"the certificates for the store cannot be used: {files}: {reason_of(error)}") from None
    return context
