"""HAProxy as a process: its `global` section, the files next to its configuration, and the limits of fragments.

A fragment has no `global` section, because process settings belong to the host. If a route depends on such a setting,
the fleet is rejected, because HAProxy would serve the route without it.

The configuration contains only the file name of a certificate. Either one file contains the certificate and its private
key, or the key is in a second file: x.key for x.crt (with `ssl-load-extra-del-ext`), or the certificate's full file
name with .key appended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets import response_bodies
from lbctl.targets.haproxy import bodies, config_digest, pick, quote, request_checks, retries, slots
from lbctl.targets.haproxy.own_lines import misplaced
from lbctl.targets.haproxy.quote import line
from lbctl.targets.own_lines import refusal
from lbctl.targets.target import File
from lbctl.targets.token import Token

_USUAL_BUFFER = 16 * 1024
"""Default size of HAProxy's buffers in bytes."""
_HEADROOM = 16 * 1024
"""Buffer bytes that are not available to the body: the request's headers, and HAProxy's reserve for changes to them."""
_DISTRIBUTION = "/etc/"
_ACCOUNT = "haproxy"
_CHROOT = "/var/lib/haproxy"
_WHOLE = "use form: whole, as a separate HAProxy"


def global_lines(view: View, others: Sequence[File]) -> list[Token]:
    """Return the lines of the `global` section. `others` are the files next to the configuration."""
    lines = list(_account(view))
    uses_tls = any(item.tls for item in view.listeners) or any(item.tls for item in view.pools.values())
    if others or view.proxy.include or uses_tls:
        lines.append(Token("default-path config"))  # the files that it reads are next to it
    jitters = [item.active.jitter for item in view.pools.values() if item.active]
    if jitters:
        lines.append(Token("max-spread-checks 500ms"))
        lines.append(line("spread-checks", min(50, round(max(jitters)))))
    size = buffer(view)
    if size != _USUAL_BUFFER:
        lines.append(line("tune.bufsize", size))
    if view.listeners and not view.proxy.is_fragment:
        lines.append(line("tune.http.maxhdr", request_checks.parser_lines(view)))
    if _needs_short_names(view):
        lines.append(Token("ssl-load-extra-del-ext"))
    if view.proxy.runtime_api:
        socket = quote.word(view.proxy.runtime_api, ("proxies", view.proxy.name, "runtime_api"))
        lines.append(Token(config_digest.BLANK))
        lines.append(line("stats socket", socket, "mode 600 level admin expose-fd listeners"))
    return lines


def _account(view: View) -> Iterator[Token]:
    """Yield the user, group and root directory that HAProxy switches to after root has started it.

    A HAProxy below /etc belongs to the distribution: root starts it, and the package provides a user and an empty
    directory for it. Any user may start a HAProxy in another directory, and it would not start at all if it were not
    allowed to change its user.
    """
    proxy, packaged = view.proxy, (view.proxy.config or "").startswith(_DISTRIBUTION)
    chroot = proxy.chroot or (_CHROOT if packaged and not _has_sockets(view) else None)
    settings = {
        "user": proxy.user or (_ACCOUNT if packaged else None),
        "group": proxy.group or (_ACCOUNT if packaged else None),
        "chroot": chroot,
    }
    for directive, value in settings.items():
        if value is not None:
            path = ("proxies", proxy.name, directive)
            yield line(directive, quote.word(value), source=path if getattr(proxy, directive) else ())


def _has_sockets(view: View) -> bool:
    """Return whether a replica is a unix socket, which HAProxy could not reach after changing its root directory."""
    return any(replica.address.path for pool in view.pools.values() for replica in pool.replicas)


def buffer(view: View) -> int:
    """Return the size of HAProxy's buffers in bytes.

    The part of a body that is read must fit into a buffer, and so must HAProxy's own responses.
    """
    held = [listener.inspect for listener in view.listeners if bodies.reads_bodies(listener, view)]
    held += filter(None, [pick.body_bytes(view), retries.body_bytes(view)])
    held += (size for size in (len(body.encode()) for body in response_bodies.bodies(view)) if size > _HEADROOM // 2)
    if view.proxy.is_fragment:
        return max(held) + _HEADROOM if held else _USUAL_BUFFER
    headers = max((listener.max_header_bytes for listener in view.listeners), default=0)
    return max(held, default=0) + headers + _HEADROOM


def companions(proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:
    """Return the file of the picker's engines and the map of server slots, if the proxy uses them."""
    files = {
        pick.SPOE: any(pool.balance.pick is not None for pool in pools),
        slots.MAP: any(slots.count(proxy, pool) for pool in pools),
    }
    return [name for name, exists in files.items() if exists]


def refusals(view: View) -> Iterator[Diagnostic]:
    """Yield the errors that make lbctl reject a fleet with this proxy."""
    proxy = view.proxy
    for item in proxy.include:
        yield from (refusal(proxy, item, each) for each in misplaced(item.place, item.text))
    if proxy.is_fragment:
        yield from _lacking(view, ("proxies", proxy.name, "form"))


def _lacking(view: View, path: Path) -> Iterator[Diagnostic]:
    """Yield the settings of this fragment that belong in the `global` section."""
    size = buffer(view)
    if size != _USUAL_BUFFER:
        message = (
            f"this fleet reads or sends large bodies, which requires `tune.bufsize {size}` in the host's `global`: "
            "with a smaller buffer, HAProxy would read only the beginning of a body and could route the request "
            "incorrectly"
        )
        yield Diagnostic("LB135", message, path=path, hint=_WHOLE)
    if _needs_short_names(view):
        message = (
            "a key x.key next to x.crt needs `ssl-load-extra-del-ext` in `global`, which a fragment cannot contain"
        )
        yield Diagnostic("LB135", message, path=path, hint="name the certificate x.pem and its key x.pem.key")


def _key_file_beside(certificate: str) -> str:
    """Return the file name under which HAProxy looks for the key of `certificate`."""
    return certificate.removesuffix(".crt") + ".key"


def unusable_key(certificate: str, key: str, path: Path, code: str) -> Iterator[Diagnostic]:
    """Yield an error if HAProxy cannot find `key`."""
    if key not in (certificate, _key_file_beside(certificate)):
        yield Diagnostic(
            code,
            "HAProxy finds a key only by the file name of its certificate, and would not find this key",
            path=path,
            hint=f"rename the key to {_key_file_beside(certificate)}, or put the certificate and the key into one file",
        )


def _needs_short_names(view: View) -> bool:
    """Return whether the key's name is x.key for the certificate x.crt."""
    pairs = [
        (item.certificate, item.key)
        for listener in view.listeners
        if listener.tls
        for item in listener.tls.certificates
    ]
    pairs += [(pool.tls.certificate or "", pool.tls.key or "") for pool in view.pools.values() if pool.tls]
    return any(name.endswith(".crt") and key == _key_file_beside(name) for name, key in pairs)
