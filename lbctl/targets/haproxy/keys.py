"""Where HAProxy looks for a private key: it knows only the certificate's file name.

Either one file holds both, or the key is beside its certificate: x.crt and x.key (with `ssl-load-extra-del-ext`), or
any other name and the same name followed by .key.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.snapshot import View


def key_file_beside(certificate: str) -> str:
    """Return the name of the file in which HAProxy looks for the key of `certificate`."""
    return certificate.removesuffix(".crt") + ".key"


def unusable_key(certificate: str, key: str, path: Path, code: str) -> Iterator[Diagnostic]:
    """Yield an error if HAProxy would not find `key`."""
    if key not in (certificate, key_file_beside(certificate)):
        yield Diagnostic(
            code,
            "HAProxy finds a key by its certificate's name alone, and would not find this one",
            path=path,
            hint=f"name it {key_file_beside(certificate)}, or put certificate and key into one file",
        )


def needs_short_names(view: View) -> bool:
    """Return whether some key is x.key beside x.crt."""
    pairs = [
        (item.certificate, item.key)
        for listener in view.listeners
        if listener.tls
        for item in listener.tls.certificates
    ]
    pairs += [(pool.tls.certificate or "", pool.tls.key or "") for pool in view.pools.values() if pool.tls]
    return any(name.endswith(".crt") and key == key_file_beside(name) for name, key in pairs)
