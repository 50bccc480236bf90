"""Where HAProxy looks for a private key: by the certificate's file name alone.

Either both stand in one file, or the key is beside its certificate: x.crt and x.key (with `ssl-load-extra-del-ext`),
anything else and the same name with .key behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.snapshot import View


def beside(certificate: str) -> str:
    return certificate.removesuffix(".crt") + ".key"


def unfit(certificate: str, key: str, path: Path, code: str) -> Iterator[Diagnostic]:
    """An error where HAProxy would not find `key`."""
    if key not in (certificate, beside(certificate)):
        yield Diagnostic(
            code,
            "HAProxy finds a key by its certificate's name alone, and would not find this one",
            path=path,
            hint=f"name it {beside(certificate)}, or put certificate and key into one file",
        )


def shortened(view: View) -> bool:
    """Whether some key stands beside an x.crt."""
    pairs = [(item.certificate, item.key) for each in view.listeners if each.tls for item in each.tls.certificates]
    pairs += [(each.tls.certificate or "", each.tls.key or "") for each in view.pools.values() if each.tls]
    return any(name.endswith(".crt") and key == beside(name) for name, key in pairs)
