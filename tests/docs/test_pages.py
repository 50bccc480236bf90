"""Every command in README.md and docs/ works as shown, and prints the output that is shown."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, RUN, Block, Command, blocks
from tests.docs.reader import Ports, beside_another_envoy, clone, environment
from tests.docs.shell import Shell
from tests.support.processes.binaries import KINDS, require

WITH_COMMANDS = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]
_WITHOUT_REPLICAS = (
    "docs/how-to/connect-remote-envoys.md",
    "docs/how-to/install-in-production.md",
    "docs/how-to/render-a-configuration.md",
    "docs/how-to/run-the-control-plane.md",
)
"""Pages that check a fleet whose replicas they do not start."""
COMMAND_TIMEOUT = 60.0
"""Seconds for one command."""
SETTLED = 60.0
"""Seconds until commands in the background must have had their effect. Until then, commands are repeated."""
_STARTS = re.compile(r"&\s*(?:#.*)?$", re.MULTILINE)
"""The end of a command that runs in the background."""


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    for kind in KINDS:
        require(kind)
    ports, place, steps = Ports(), tmp_path / "lbctl", tmp_path / "steps"
    place.mkdir()
    steps.mkdir()
    clone(place, ports)
    waits = False
    with beside_another_envoy(), _replicas(page, ports), Shell(place, steps, environment(place, ports)) as shell:
        for block, command, should_succeed in _steps(page, ports):
            if "file" in block.words:
                (place / block.words["file"]).write_text(command.text, encoding="utf-8")
                continue
            difference = _difference(shell, command, should_succeed, SETTLED if waits else 0)
            if difference:
                pytest.fail(f"{page}:{command.line}: {difference}{_logs(place)}", pytrace=False)
            waits |= _STARTS.search(command.text) is not None


@contextmanager
def _replicas(page: str, ports: Ports) -> Iterator[None]:
    """Accept connections at the replicas of a page that does not start any itself."""
    with ExitStack() as stack:
        for port in ("9001", "9002", "9003") if page in _WITHOUT_REPLICAS else ():
            stack.enter_context(socket.create_server(("127.0.0.1", int(ports.of(port)))))
        yield


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_only_in_shell_blocks(page: str) -> None:
    others = [block for block in blocks(page) if block.language not in RUN]
    assert [line for block in others for line in block.text.splitlines() if line.startswith("$ ")] == []
    assert {word for block in blocks(page) for word in block.words} <= {"by", "excerpt", "file"}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_by_other_tests_exist_there(page: str) -> None:
    for block in blocks(page):
        if "by" in block.words:
            file, _, test = block.words["by"].partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            if test:
                assert f"\ndef {test}(" in text
            else:
                lines = [line.removeprefix("$ ") for line in text.splitlines()]
                assert [command.text for command in block.commands if command.text not in lines] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_has_a_target(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not _leads((ROOT / page).parent, ROOT / page, link)] == []


def test_envoy_commands_disable_hot_restart_and_log_to_a_file() -> None:
    shown = [line for page in PAGES for block in blocks(page) for line in block.text.splitlines() if "envoy -c" in line]
    assert len(shown) > 2
    assert [line for line in shown if "--disable-hot-restart" not in line] == []
    assert [line for line in shown if line.endswith("&") and not line.endswith("> envoy.log 2>&1 &")] == []


def test_every_named_make_target_exists() -> None:
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^\$ )make ([a-z]+)", text, re.MULTILINE)) - known == set()


def _leads(folder: Path, page: Path, link: str) -> bool:
    """Return whether the file of the link exists and has its heading."""
    name, _, anchor = link.partition("#")
    file = folder / name if name else page
    if not anchor:
        return file.exists()
    text = file.read_text(encoding="utf-8")
    return anchor in {_slug(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def _slug(title: str) -> str:
    """Return GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _steps(page: str, ports: Ports) -> Iterator[tuple[Block, Command, bool]]:
    """Yield the steps of a reader: the block, the command with its ports, and whether the command should succeed."""
    for block in blocks(page):
        if "file" in block.words:
            yield block, Command(block.line, ports.other(block.text), []), True
        elif block.language in RUN and "by" not in block.words:
            commands = block.commands
            for command, following in zip(commands, [*commands[1:], None], strict=True):
                should_succeed = following is None or following.text.split("#")[0].strip() != "echo $?"
                yield (
                    block,
                    Command(command.line, ports.other(command.text), [*map(ports.other, command.printed)]),
                    should_succeed,
                )


def _difference(shell: Shell, command: Command, should_succeed: bool, patience: float) -> str:
    """Run the command, and return the difference from the page, or an empty text."""
    end = time.monotonic() + patience
    while True:
        code, output = shell.run(command.text, COMMAND_TIMEOUT)
        if (code == 0) == should_succeed and command.agrees(output):
            return ""
        if time.monotonic() > end:
            expected = "\n".join(command.printed)
            return f"{command.text}\nended with {code} and said:\n{output}\nThe page shows:\n{expected}\n"
        time.sleep(0.2)


def _logs(folder: Path) -> str:
    """Return the last lines of the logs of background programs."""
    return "".join(
        f"\n{path.name}: …{path.read_text(errors='replace')[-1500:]}" for path in sorted(folder.glob("*.log"))
    )
