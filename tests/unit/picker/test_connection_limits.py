"""At the limit of a listener, the connection that has waited longest since its last answer is closed."""

from __future__ import annotations

from lbctl.picker.connection_limits import ConnectionLimits


class _Connection:
    client = None

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_connection_without_an_answer_is_closed_first() -> None:
    limits, connections = ConnectionLimits(3), [_Connection() for _ in range(4)]
    for connection in connections[:3]:
        limits.enter(connection)
    limits.note_answer(connections[0])
    limits.enter(connections[3])
    assert [connection.closed for connection in connections] == [False, True, False, False]


def test_unfinished_questions_are_limited_in_sum() -> None:
    limits, connections = ConnectionLimits(10, held=100), [_Connection() for _ in range(4)]
    for connection in connections:
        limits.enter(connection)
    for size in (20, 40):
        for connection in connections[1:]:
            limits.note_held(connection, size)
    assert [connection.closed for connection in connections] == [False, True, False, False]
    limits.note_held(connections[2], 0)
    limits.leave(connections[3])
    limits.enter(again := _Connection())
    limits.note_held(again, 100)
    assert not again.closed
