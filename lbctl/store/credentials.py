"""Credentials from the files named in a store's settings: password, certificates and signing keys.

These credentials are never logged or saved.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import urlsplit

from lbctl.base.errors import reason_of
from lbctl.compile.files import read_regular
from lbctl.ir.proxies import Store
from lbctl.store.interface import UnusableError
from lbctl.store.signing import Keyring, parse_keys

_MAX_FILE_BYTES = 4096
"""Maximum size, in bytes, of a file that contains a password or keys."""


def password_of(store: Store) -> str | None:
    """Return the password; None if the store does not have one. Raises UnusableError if its file cannot be read."""
    if store.password_file is None:
        return None
    try:
        password = read_regular(Path(store.password_file), _MAX_FILE_BYTES).decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not text"
        raise UnusableError(f"the store's password cannot be read: {store.password_file}: {reason}") from None
    if not password:
        raise UnusableError(f"the store's password file is empty: {store.password_file}")
    return password


def tls_of(store: Store) -> ssl.SSLContext:
    """Return the TLS context that verifies the store's certificate. Raises UnusableError if a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=store.ca)
        if store.certificate is not None:
            context.load_cert_chain(store.certificate, store.key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (store.ca, store.certificate, store.key)))
        raise UnusableError(f"the certificates for the store cannot be used: {files}: {reason_of(error)}") from None
    return context


def read_keyring(store: Store) -> Keyring:
    """Return the keys in the store's key file; empty if the file is not set. Raises UnusableError."""
    if store.key_file is None:
        return Keyring()
    try:
        content = read_regular(Path(store.key_file), _MAX_FILE_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not text"
        raise UnusableError(f"the control plane's keys cannot be read: {store.key_file}: {reason}") from None
    try:
        return parse_keys(content, _scope(store))
    except ValueError as error:
        raise UnusableError(f"the file in control.store.key_file cannot be used: {store.key_file}: {error}") from None


def _scope(store: Store) -> str:
    """Return an identifier for the control plane.

    The identifier does not change when the store moves to another address.
    """
    url = urlsplit(store.url)
    return f"{url.netloc}{url.path}" if url.scheme == "kubernetes" else store.key_prefix
