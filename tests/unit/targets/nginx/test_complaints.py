"""The errors that `nginx -t` printed are reported at their places in the fleet."""

from __future__ import annotations

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.targets.nginx import TARGET
from tests.support.nginx import view_of


def test_error_is_reported_at_its_replica() -> None:
    pool = Pool("p", (Replica("lost", Address("replica.invalid", 1)),))
    bundle = TARGET.render(view_of(pool))
    line = next(number for number, path in bundle.main.sources.items() if path == ("pools", "p", "replicas", "lost"))
    output = (
        '2026/11/28 17:23:48 [warn] 30997#30997: "text/html" is duplicate\n'
        '2026/11/28 17:23:48 [emerg] 30997#30997: host not found in upstream "replica.invalid:1" '
        f"in /tmp/nginx.conf:{line}\n"
        "nginx: configuration file /tmp/nginx.conf test failed\n"
    )
    (complaint,) = TARGET.complaints(output, bundle)
    assert complaint.message == 'host not found in upstream "replica.invalid:1"'
    assert (complaint.file, complaint.line) == ("nginx.conf", line)


def test_error_without_line_has_no_place() -> None:
    output = "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)\n"
    (complaint,) = TARGET.complaints(output, TARGET.render(view_of(Pool("p"))))
    assert complaint.message.startswith("bind() to 0.0.0.0:80 failed")
    assert (complaint.file, complaint.line) == (None, None)
