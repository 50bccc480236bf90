"""Checks that the picker is running and responding, if a pool uses `algorithm: pick`."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from lbctl.api.any_version import AnyVersionStatus
from lbctl.base.errors import reason_of
from lbctl.base.hosts import is_loopback
from lbctl.cli.doctor.check import DoctorResult
from lbctl.cli.doctor.sources import ANSWER_TIMEOUT
from lbctl.cli.listen_address import picker_address
from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_http
from lbctl.ir.topology import Topology
from lbctl.targets.picker import missing_key

_HINT = "see `lbctl status` and the log of `serve`"


def picker(bind: Address | None, url: str, status: AnyVersionStatus | None) -> DoctorResult | None:
    """Check the picker that the fleet needs at `bind`. Return None if no picker is required.

    `status` is the status reported by `serve` at `url`, or None if it does not respond. If `serve` is on another
    machine, only its status can be checked.
    """
    reported = status.picker if status is not None else None
    if reported is None:
        return _without_report(bind, url, is_served=status is not None) if bind is not None else None
    what = f"picker {reported.listens}"
    if status is not None and status.dry_run:
        return DoctorResult(what, "skipped", "serve is running with --dry-run, so it does not start a picker")
    if not reported.running:
        reason = reported.reason or "it is starting"
        return DoctorResult(what, "failed", f"not running: {reason}", _HINT, absent=True)
    if reported.unsaved:
        message = (
            f"a restart of the picker will lose the current sessions, because it cannot save them: {reported.unsaved}"
        )
        return DoctorResult(what, "warn", message, "fix the directory picker-memory in the state directory of serve")
    if not is_loopback(urlsplit(url).hostname or ""):
        return DoctorResult(what, "ok", "running, according to serve")
    problem = _problem(picker_http(picker_address(what, reported.listens)))
    if problem:
        message = f"serve reports that the picker is running, but {problem}"
        return DoctorResult(what, "warn", message, f"if {url} is on another machine, run doctor there")
    return DoctorResult(what, "ok", "answers")


def keyless(topology: Topology) -> DoctorResult | None:
    """Return a warning if this fleet's proxies query the picker without a key, or None otherwise."""
    reason = missing_key(topology)
    if not reason or all(pool.balance.pick is None for pool in topology.pools):
        return None
    message = f"every user on its machine can query the picker: {reason}"
    return DoctorResult("picker key", "warn", message, "set control.picker.key_file to a file with a key (see LB248)")


def lacks_picker(url: str, status: AnyVersionStatus | None) -> bool:
    """Return whether `serve` at `url` is on this machine and reports that the required picker is not running."""
    reported = status.picker if status is not None else None
    if status is None or reported is None or not is_loopback(urlsplit(url).hostname or ""):
        return False
    return reported.since is None and not status.dry_run


def _without_report(bind: Address, url: str, *, is_served: bool) -> DoctorResult:
    """Check the picker based on the files, because no `serve` reports its state."""
    what = f"picker {bind}"
    if is_served:
        message = "the running serve does not need a picker, so it uses different files"
        return DoctorResult(what, "warn", message, "lbctl status")
    problem = _problem(picker_http(bind))
    if problem:
        return DoctorResult(what, "skipped", f"not running ({problem})")
    message = f"a picker answers, but serve does not answer at {url}: the picker may belong to another fleet"
    return DoctorResult(what, "warn", message, "set --server, or another port in control.picker.bind")


def _problem(place: Address) -> str:
    """Return the reason why no picker responds over HTTP at this address, or an empty string."""
    connection = http.client.HTTPConnection(place.host, place.port, timeout=ANSWER_TIMEOUT)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return "" if (answer.status, answer.read()) == (200, b"ok\n") else f"the process at {place} is not a picker"
    except TimeoutError:
        return f"nothing answers at {place} within {ANSWER_TIMEOUT:g} s"
    except (OSError, http.client.HTTPException) as error:
        return f"{place}: {reason_of(error).lower()}"
    finally:
        connection.close()
