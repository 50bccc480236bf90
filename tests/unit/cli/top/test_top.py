"""`lbctl top`: its rows, its keys, and its screen."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from msgspec.structs import replace
from rich.console import Console

from lbctl.api import schema
from lbctl.cli import run
from lbctl.cli.keys import keys_of
from lbctl.cli.top.rows import COLUMNS, pool_line, rows_of, sorted_rows
from lbctl.cli.top.view import ScreenView
from tests.support import api
from tests.support.api import Fleet
from tests.support.api_server import serving
from tests.support.processes.ports import free_port
from tests.support.pseudo_terminal import on_terminal

FAST = replace(
    api.REPLICA, name="h100", share=0.7, observed=0.72, requests_per_second=12.5, in_flight=9, weight=5.5,
    errors=0.02, first_byte_p50=0.12, first_byte_p99=1.2,
)  # fmt: skip
SLOW = replace(
    api.REPLICA, name="l4", share=0.3, state="slow", state_reason="three times slower than its peers",
    requests_per_second=3.0, in_flight=11,
)  # fmt: skip


def signal(value: float, fresh: bool = True) -> schema.Signal:
    return schema.Signal(value, "", 1.0, "vllm", fresh)


SIGNALS = (
    schema.ReplicaSignals(
        "llama", "h100", 15.0, {"queue": signal(2), "kv_cache": signal(0.52), "gpu": signal(0.9)}, ()
    ),
    schema.ReplicaSignals("llama", "l4", 15.0, {"queue": signal(14), "temperature": signal(81, fresh=False)}, ()),
)
POOLS = (api.pool("llama", FAST, SLOW), api.pool("qwen", replace(api.REPLICA, name="a")))
QUEUE = schema.PoolQueue(500, 10.0, 12, {}, {}, 0, None, {}, refused_full=3, refused_late=1, left=0)
ROWS = rows_of(POOLS, SIGNALS)


def column(key: str) -> int:
    return next(index for index, item in enumerate(COLUMNS) if item.key == key)


def screen(view: ScreenView, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, highlight=False)
    with console.capture() as capture:
        console.print(view.draw(width, height))
    return capture.get().splitlines()


def names(view: ScreenView) -> list[str]:
    return [line.split()[0] for line in screen(view) if "/" in line.split()[0]]


def test_row_has_shares_and_fresh_signals_of_its_replica() -> None:
    cells = [[item.text(row) for item in COLUMNS] for row in ROWS]
    assert cells == [
        ["llama/h100", "in", "70.0%", "72.0%", "12.5", "2%", "120 ms", "1.2 s", "9", "2", "52%", "90%", "-", "5.5"],
        ["llama/l4", "slow", "30.0%", "-", "3", "-", "-", "-", "11", "14", "-", "-", "-", "1"],
        ["qwen/a", "in", "0.0%", *["-"] * 10, "1"],
    ]
    assert pool_line(api.pool("llama"), ROWS[:2]) == (
        "llama  2 replicas: 1 in, 1 slow · 15.5 req/s · 20 in flight · 16 queue"
    )  # fmt: skip
    answers = replace(api.pool("llama"), errors=0.25, first_byte_p50=0.12, first_byte_p99=1.2)
    assert pool_line(answers, ()) == "llama  no replicas · 25% errors · first byte p50 120 ms, p99 1.2 s"


def test_line_of_a_pool_shows_its_queue_at_the_picker() -> None:
    assert pool_line(replace(api.pool("llama"), queue=QUEUE), ()) == (
        "llama  no replicas · 12 waiting at the picker · 4 rejected"
    )
    idle = replace(QUEUE, waiting=0, refused_full=0, refused_late=0)
    assert pool_line(replace(api.pool("llama"), queue=idle), ()) == "llama  no replicas · 0 waiting at the picker"


def test_unknown_values_come_last_in_either_order() -> None:
    queue = COLUMNS[column("u")]
    assert [row.name for row in sorted_rows(ROWS, queue, reverse=True)] == ["llama/l4", "llama/h100", "qwen/a"]
    assert [row.name for row in sorted_rows(ROWS, queue, reverse=False)] == ["llama/h100", "llama/l4", "qwen/a"]


def test_keys_select_column_order_and_pool() -> None:
    view = ScreenView(ROWS, (api.pool("llama"), api.pool("qwen")))
    assert names(view) == ["llama/h100", "llama/l4", "qwen/a"]
    view.press("i")
    assert names(view) == ["llama/l4", "llama/h100", "qwen/a"]
    view.press("i")
    assert names(view) == ["llama/h100", "llama/l4", "qwen/a"]
    view.press("left")
    assert COLUMNS[view.sort].head == "P99"
    view.press("p")
    assert (view.pool, names(view)) == ("llama", ["llama/h100", "llama/l4"])
    view.press("p")
    assert (view.pool, names(view)) == ("qwen", ["qwen/a"])
    view.press("p")
    assert view.pool is None
    view.press(" ")
    view.show((), (), "", 1.0)
    assert names(view) == ["llama/h100", "llama/l4", "qwen/a"], "the screen is held"


def test_thousand_replicas_are_shown_in_pages() -> None:
    many = tuple(
        replace(api.REPLICA, name=f"a-replica-with-a-long-name-{index:04}", observed=0.1) for index in range(1000)
    )
    view = ScreenView(rows_of([api.pool("llama", *many)], ()), (api.pool("llama"),))
    lines = screen(view)
    assert len(lines) == 24
    assert max(map(len, lines)) == 80
    assert "1000 replicas · page 1 of" in lines[0]
    first = names(view)
    assert len(first) == 20
    view.press("page down")
    assert not {*first} & {*names(view)} or "…" in first[0]
    assert "page 2 of 50" in screen(view)[0]
    for _ in range(100):
        view.press("down")
    assert "page 50 of 50" in screen(view)[0]


def test_wide_terminal_shows_the_reasons() -> None:
    view = ScreenView(ROWS, (api.pool("llama"), api.pool("qwen")))
    assert not [line for line in screen(view) if "REASON" in line]
    assert [line for line in screen(view, 160) if "three times slower than its peers" in line]


@pytest.mark.parametrize(
    ("text", "keys"),
    [("q", ["q"]), ("\x1b[Cq", ["right", "q"]), ("\x1bOA\x1b[6~", ["up", "page down"]), ("\x1bx", ["x"])],
)
def test_key_sequences_are_decoded(text: str, keys: list[str]) -> None:
    assert keys_of(text) == keys


def test_top_in_a_pipe_prints_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet()
    fleet.listed, fleet.read = POOLS, schema.Signals(SIGNALS)
    with serving(fleet) as url:
        assert run(["top", "--server", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["REPLICA", "llama/h100", "llama/l4", "qwen/a"]
    assert run(["top", "--server", url]) == 4


def test_top_in_a_pipe_ends_with_the_queues(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet()
    fleet.listed = (replace(POOLS[0], queue=QUEUE), POOLS[1])
    with serving(fleet) as url:
        assert run(["top", "--server", url]) == 0
    _, *rows, line = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["llama/h100", "llama/l4", "qwen/a"]
    assert line == "llama  2 replicas: 1 in, 1 slow · 15.5 req/s · 20 in flight · 12 waiting at the picker · 4 rejected"


@pytest.mark.slow
def test_top_survives_a_restart_of_serve_and_ends_with_q() -> None:
    fleet, port = Fleet(), free_port()
    fleet.listed, fleet.read = POOLS, schema.Signals(SIGNALS)
    with ExitStack() as stack:
        with serving(fleet, port=port) as url:
            often = {"lbctl.cli.top._INTERVAL": 0.2}
            terminal = stack.enter_context(on_terminal("top", "--server", url, constants=often))
            terminal.await_text("llama/l4")
            fleet.listed = (api.pool("llama", replace(SLOW, in_flight=77)),)
            terminal.await_text("77")
        terminal.await_text("is not responding")
        fleet.listed = (api.pool("llama", replace(SLOW, in_flight=88)),)
        with serving(fleet, port=port):
            terminal.await_text("88")
            terminal.press("uq")
            assert terminal.end() == 0
        assert "\x1b[?1049l" in terminal.shown, "the screen is as it was before"
