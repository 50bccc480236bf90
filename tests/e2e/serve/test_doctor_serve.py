"""`lbctl doctor` next to a running control plane: its ports, its state and its version."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from lbctl import __version__
from lbctl.cli import run
from tests.support.processes.control import controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.lbctl_process import PICKER_MAY_HANG, short_pauses
from tests.support.processes.picker import frozen, picker_section, pid_of
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually


@pytest.fixture
def address() -> Iterator[str]:
    """Yield the address of a replica that accepts connections."""
    with socket.create_server((HOST, 0)) as listening:
        yield f"{HOST}:{listening.getsockname()[1]}"


@pytest.mark.e2e
def test_doctor_recognises_a_running_serve(capsys: pytest.CaptureFixture[str], address: str) -> None:
    given = fleet_of({"replicas": [{"name": "a", "address": address}]})
    with controlling(given) as control:
        given["control"] = {"xds": {"bind": f"{HOST}:{control.xds}"}, "api": {"bind": f"{HOST}:{control.api}"}}
        file = control.directory / "doctor.json"
        file.write_text(json.dumps(given))
        assert control.process is not None
        code = run(["doctor", str(file), "--state", str(control.state), "--server", control.url, "-o", "json"])
        rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
        assert code == 0
        for port, name in ((control.xds, "xds"), (control.api, "api")):
            row = rows[f"control.{name}.bind {HOST}:{port}"]
            assert (row["state"], row["message"]) == ("ok", f"in use by lbctl (process {control.process.pid})")
        assert rows[f"serve {control.url}"]["message"] == f"lbctl {__version__} answers"
        assert rows[f"state {control.state}"]["message"] == "writable and private"


@pytest.mark.e2e
def test_doctor_checks_the_picker_of_the_fleet(capsys: pytest.CaptureFixture[str], address: str) -> None:
    section = picker_section()
    given = fleet_of({"replicas": [{"name": "a", "address": address}], "balance": {"algorithm": "pick"}}, **section)
    bind = section["control"]["picker"]["bind"]
    with short_pauses(PICKER_MAY_HANG), controlling(given) as control:

        def doctor() -> tuple[int, dict[str, dict[str, str]]]:
            command = ["doctor", str(control.files), "--state", str(control.state), "--server", control.url]
            code = run([*command, "-o", "json"])
            return code, {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}

        eventually(lambda: control.status["picker"]["running"])
        pid = pid_of(control)
        code, rows = doctor()
        assert (code, rows[f"picker {bind}"]["state"], rows[f"picker {bind}"]["message"]) == (0, "ok", "answers")
        row = rows[f"control.picker.bind {bind}"]
        assert (row["state"], row["message"]) == ("ok", f"in use by lbctl (process {pid})")
        with frozen(pid):
            eventually(lambda: not control.status["picker"]["running"])
            code, rows = doctor()
            assert (code, rows[f"picker {bind}"]["state"]) == (4, "failed")
            assert "not running: the picker hangs" in rows[f"picker {bind}"]["message"]
