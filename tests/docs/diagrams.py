"""The diagrams of docs/concepts, as SVG files made of boxes and arrows (`make docs`).

A diagram is a list of rows. An arrow joins boxes of the same row or of neighbouring rows. A text that does not fit is
an error. The files are readable on a phone, and in light and dark mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 380
"""Pixels. Almost the whole width of a phone with 390 pixels, so that texts are not scaled down there."""
_EDGE, _PADDING, _LINE, _FONT = 12, 8, 15, 12
_LABEL_FONT, _HEAD = 11, 6
_CHARACTER, _BOLD_CHARACTER = 0.6, 0.66
"""Mean width of a character of a wide sans-serif font, as a part of the font size."""
_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2933 }
.title { font-weight: 600 }
.label { font-size: 11px; fill: #37474f; paint-order: stroke; stroke: #fff; stroke-width: 3px }
.ground { fill: #fff }
.box { fill: #e0f2f1; stroke: #00796b }
.plain { fill: #f1f3f5; stroke: #78909c }
.group { fill: none; stroke: #78909c; stroke-dasharray: 5 3 }
.arrow { fill: none; stroke: #455a64; stroke-width: 1.5 }
.dashed { stroke-dasharray: 5 3 }
.head { fill: #455a64 }
@media (prefers-color-scheme: dark) {
  text { fill: #eceff1 }
  .label { fill: #cfd8dc; stroke: #1e2129 }
  .ground { fill: #1e2129 }
  .box { fill: #10403c; stroke: #4db6ac }
  .plain { fill: #2b3038; stroke: #90a4ae }
  .group { stroke: #90a4ae }
  .arrow { stroke: #b0bec5 }
  .head { fill: #b0bec5 }
}"""


@dataclass(frozen=True)
class Box:
    """A box with a title, a note below it, and its width in columns. `plain`: the box is not part of lbctl."""

    title: str
    note: str = ""
    columns: int = 1
    plain: bool = False


@dataclass(frozen=True)
class Row:
    """Boxes from left to right; None leaves a column empty. `gap`: pixels between columns."""

    boxes: Sequence[Box | None]
    gap: int = 12
    group: str = ""
    """Title of a dashed frame around this row and the rows before it that have the same title."""


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, by their titles. A dashed one shows an exception. A label may have several lines."""

    start: str
    end: str
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Diagram:
    rows: Sequence[Row]
    arrows: Sequence[Arrow] = ()

    def svg(self) -> str:
        """Return the SVG file.

        Raises ValueError if a text does not fit, or if an arrow joins boxes that are not neighbours.
        """
        return _Drawing(self).svg()


@dataclass(frozen=True)
class _Rectangle:
    row: int
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Rectangle) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class _Drawing:
    """The elements of one diagram, and their places."""

    def __init__(self, diagram: Diagram) -> None:
        self._places: dict[str, _Rectangle] = {}
        self._labels: list[tuple[str, _Rectangle]] = []
        self._pairs = [(arrow.start, arrow.end) for arrow in diagram.arrows]
        self._frames: list[str] = []
        self._boxes: list[str] = []
        self._height = self._place(diagram)
        self._arrows = [element for arrow in diagram.arrows for element in self._arrow(arrow)]
        for index, (text, place) in enumerate(self._labels):
            for other, its_place in [*self._labels[:index], *self._places.items()]:
                if place.overlaps(its_place):
                    raise ValueError(f"the label {text!r} overlaps {other!r}")

    def svg(self) -> str:
        """Return the text of the file."""
        size = f'viewBox="0 0 {WIDTH} {self._height:.0f}" width="{WIDTH * 1.2:.0f}" height="{self._height * 1.2:.0f}"'
        ground = f'<rect class="ground" width="{WIDTH}" height="{self._height:.0f}" rx="8"/>'
        elements = [f"<style>\n{_STYLE}\n</style>", ground, *self._frames, *self._arrows, *self._boxes]
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(elements) + "\n</svg>\n"

    def _place(self, diagram: Diagram) -> float:
        """Draw the boxes and frames, and return the height of the diagram."""
        top: float = _EDGE
        frame_top = top
        for number, row in enumerate(diagram.rows):
            is_last = number + 1 == len(diagram.rows)
            if row.group and (number == 0 or diagram.rows[number - 1].group != row.group):
                frame_top = top
                top += _PADDING if number else _LINE + _PADDING
            top = self._row(row, number, top)
            if row.group and (is_last or diagram.rows[number + 1].group != row.group):
                title = frame_top + _LINE if frame_top == _EDGE else top + _LINE
                top += _PADDING if frame_top == _EDGE else _LINE + _PADDING
                self._frame(row.group, frame_top, top, title)
            if not is_last:
                titles = {box.title for box in row.boxes if box}
                labels = [
                    arrow.label for arrow in diagram.arrows if self._goes_down(arrow, titles, diagram.rows, number)
                ]
                top += 24 + max((_LINE * (label.count("\n") + 1) for label in labels if label), default=0)
        return top + _EDGE

    def _goes_down(self, arrow: Arrow, titles: set[str], rows: Sequence[Row], number: int) -> bool:
        """Return whether an arrow is between this row and the next one."""
        below = {box.title for row in rows[number + 1 :] for box in row.boxes if box}
        return (arrow.start in titles and arrow.end in below) or (arrow.end in titles and arrow.start in below)

    def _frame(self, text: str, top: float, bottom: float, title: float) -> None:
        """Draw the frame of a group. Arrows may cross its title only between the first and the last row."""
        side = _EDGE - 6
        size = f'width="{WIDTH - 2 * side}" height="{bottom - top:.0f}"'
        self._frames.append(f'<rect class="group" x="{side}" y="{top:.0f}" {size} rx="6"/>')
        self._frames.append(f'<text class="label" x="{_EDGE + 2}" y="{title:.0f}">{escape(text)}</text>')

    def _row(self, row: Row, number: int, top: float) -> float:
        """Draw a row of boxes, and return its bottom."""
        count = sum(box.columns if box else 1 for box in row.boxes)
        column = (WIDTH - 2 * _EDGE - (count - 1) * row.gap) / count
        placed, left = [], float(_EDGE)
        for box in row.boxes:
            columns = box.columns if box else 1
            width = columns * column + (columns - 1) * row.gap
            if box:
                title = _wrapped(box.title, width - _PADDING, _FONT * _BOLD_CHARACTER)
                placed.append((box, left, width, title, _wrapped(box.note, width - _PADDING, _FONT * _CHARACTER)))
            left += width + row.gap
        bottom = top + 2 * _PADDING + _LINE * max(len(title) + len(note) for _, _, _, title, note in placed)
        for box, left, width, title, note in placed:
            self._places[box.title] = _Rectangle(number, left, top, left + width, bottom)
            style = "plain" if box.plain else "box"
            size = f'x="{left:.1f}" y="{top:.0f}" width="{width:.1f}" height="{bottom - top:.0f}"'
            self._boxes.append(f'<rect class="{style}" {size} rx="4"/>')
            base = (top + bottom - _LINE * (len(title) + len(note))) / 2 + _FONT - 1
            for line, text in enumerate([*title, *note]):
                words = ' class="title"' if line < len(title) else ""
                place = f'x="{left + width / 2:.1f}" y="{base + line * _LINE:.1f}"'
                self._boxes.append(f'<text{words} {place} text-anchor="middle">{escape(text)}</text>')
        return bottom

    def _arrow(self, arrow: Arrow) -> Iterator[str]:
        """Draw an arrow between neighbours. Of two in opposite directions, the first one is above or on the left."""
        start, end = self._places[arrow.start], self._places[arrow.end]
        side = 0
        if (arrow.end, arrow.start) in self._pairs:
            side = -1 if (arrow.end, arrow.start) in self._pairs[self._pairs.index((arrow.start, arrow.end)) :] else 1
        if start.row == end.row:
            yield from self._level(arrow, start, end, side)
        elif abs(start.row - end.row) == 1:
            yield from self._upright(arrow, start, end, side)
        else:
            raise ValueError(f"{arrow.start!r} and {arrow.end!r} are not neighbours")

    def _level(self, arrow: Arrow, start: _Rectangle, end: _Rectangle, side: int) -> Iterator[str]:
        y = (start.top + start.bottom) / 2 + side * (start.bottom - start.top) / 4
        rightward = start.left < end.left
        x1, x2 = (start.right, end.left) if rightward else (start.left, end.right)
        yield from _line(x1, y, x2, y, arrow.dashed)
        yield from self._label(arrow.label, (x1 + x2) / 2, y - 5, "middle")

    def _upright(self, arrow: Arrow, start: _Rectangle, end: _Rectangle, side: int) -> Iterator[str]:
        left, right = max(start.left, end.left), min(start.right, end.right)
        if right <= left:
            raise ValueError(f"{arrow.start!r} and {arrow.end!r} are not above one another")
        x = (left + right) / 2 + side * min(14.0, (right - left) / 4)
        y1, y2 = (start.bottom, end.top) if start.row < end.row else (start.top, end.bottom)
        yield from _line(x, y1, x, y2, arrow.dashed)
        lines = arrow.label.count("\n") + 1
        yield from self._label(
            arrow.label,
            x + (side or 1) * 6,
            (y1 + y2) / 2 - (lines - 1) * _LINE / 2 + 4,
            "end" if side < 0 else "start",
        )

    def _label(self, label: str, x: float, y: float, anchor: str) -> Iterator[str]:
        for line, text in enumerate(label.split("\n") if label else []):
            width, base = len(text) * _LABEL_FONT * _CHARACTER, y + line * _LINE
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            if left < 0 or left + width > WIDTH:
                raise ValueError(f"the label {text!r} is outside of the diagram")
            self._labels.append((text, _Rectangle(-1, left, base - _LABEL_FONT + 2, left + width, base + 2)))
            yield f'<text class="label" x="{x:.1f}" y="{base:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, dashed: bool) -> Iterator[str]:
    """Draw an upright or level line with a head at its end."""
    across, down = _sign(x2 - x1), _sign(y2 - y1)
    base_x, base_y = x2 - across * _HEAD, y2 - down * _HEAD
    style = "arrow dashed" if dashed else "arrow"
    yield f'<path class="{style}" d="M{x1:.1f} {y1:.1f}L{base_x:.1f} {base_y:.1f}"/>'
    wide_x, wide_y = down * _HEAD / 1.5, across * _HEAD / 1.5
    yield (
        f'<path class="head" d="M{x2:.1f} {y2:.1f}L{base_x - wide_x:.1f} {base_y - wide_y:.1f}'
        f'L{base_x + wide_x:.1f} {base_y + wide_y:.1f}z"/>'
    )


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _wrapped(text: str, width: float, character: float) -> list[str]:
    """Break a text into lines of at most `width` pixels."""
    lines: list[str] = []
    for word in text.split():
        if len(word) * character > width:
            raise ValueError(f"the word {word!r} is wider than its box")
        if lines and len(f"{lines[-1]} {word}") * character <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


DIAGRAMS = {
    "pools": Diagram(
        [
            Row([Box("Clients", plain=True)]),
            Row([Box("Listener", "an address that clients connect to")]),
            Row([Box("Route", "selects requests by host, path and model")]),
            Row([Box("Pool llama", "the current model", columns=2), Box("Pool next", "a new model")]),
            Row(
                [
                    Box("h100-0", "capacity 11", plain=True),
                    Box("a100-0", "capacity 5", plain=True),
                    Box("h100-9", "capacity 11", plain=True),
                ]
            ),
        ],
        [
            Arrow("Clients", "Listener"),
            Arrow("Listener", "Route"),
            Arrow("Route", "Pool llama", "split 95 %"),
            Arrow("Route", "Pool next", "split 5 %"),
            Arrow("Pool llama", "h100-0", "11 of 16"),
            Arrow("Pool llama", "a100-0", "5 of 16"),
            Arrow("Pool next", "h100-9", "all"),
        ],
    ),
    "control-plane": Diagram(
        [
            Row([Box("Fleet files"), Box("Discovery"), Box("Metrics", "engines, GPUs"), Box("Operators", "CLI, API")]),
            Row([Box("lbctl serve", "decides weights, health and rollout steps, and saves them in its state")]),
            Row(
                [
                    Box("Envoy", "any machine", plain=True),
                    Box("HAProxy", "same machine", plain=True),
                    Box("nginx", "same machine", plain=True),
                ],
            ),
            Row([Box("Model servers", "get requests only through the proxies", plain=True)]),
        ],
        [
            *[Arrow(source, "lbctl serve") for source in ("Fleet files", "Discovery", "Metrics", "Operators")],
            Arrow("lbctl serve", "Envoy", "xDS"),
            Arrow("lbctl serve", "HAProxy", "Runtime API,\nreload"),
            Arrow("lbctl serve", "nginx", "checked\nreload"),
            Arrow("Envoy", "Model servers"),
            Arrow("HAProxy", "Model servers", "requests"),
            Arrow("nginx", "Model servers"),
        ],
    ),
    "proxies": Diagram(
        [
            Row(
                [
                    Box(
                        "Retry budget?",
                        "or a time limit for the whole request, or traces, or on another machine than serve",
                    )
                ]
            ),
            Row(
                [
                    Box("Envoy", plain=True),
                    Box(
                        "Limit per tenant?",
                        "of concurrent requests, or queues without the picker, or hashed keys",
                        columns=3,
                    ),
                ]
            ),
            Row(
                [
                    None,
                    Box("HAProxy", plain=True),
                    Box("nginx runs already?", "and models are not in bodies, no JWT, and weights may wait", columns=2),
                ]
            ),
            Row([None, None, Box("nginx", plain=True), Box("Envoy by default", plain=True)]),
        ],
        [
            Arrow("Retry budget?", "Envoy", "yes"),
            Arrow("Retry budget?", "Limit per tenant?", "no"),
            Arrow("Limit per tenant?", "HAProxy", "yes"),
            Arrow("Limit per tenant?", "nginx runs already?", "no"),
            Arrow("nginx runs already?", "nginx", "yes"),
            Arrow("nginx runs already?", "Envoy by default", "no"),
        ],
    ),
    "health": Diagram(
        [
            Row(
                [
                    Box("Active checks", "proxies, serve"),
                    Box("Passive checks", "proxies"),
                    Box("Deep health", "serve, from metrics"),
                    Box("Drains", "operators"),
                ]
            ),
            Row([Box("State of the replica", "in, ramping, down, ejected, drained, …")]),
            Row(
                [
                    Box("Gets its share", "in, slow, hot", plain=True),
                    Box("Gets a smaller share", "ramping, on trial", plain=True),
                    Box("Gets no new requests", "down, ejected, drained", plain=True),
                ]
            ),
        ],
        [
            *[
                Arrow(source, "State of the replica")
                for source in ("Active checks", "Passive checks", "Deep health", "Drains")
            ],
            *[
                Arrow("State of the replica", effect)
                for effect in ("Gets its share", "Gets a smaller share", "Gets no new requests")
            ],
        ],
    ),
    "deep-health": Diagram(
        [
            Row([Box("In service", "weight as decided", columns=2)]),
            Row([Box("Ejected", "stall, XID or memory"), Box("On trial", "weight at the floor")], gap=110),
        ],
        [
            Arrow("In service", "Ejected", "fault"),
            Arrow("Ejected", "In service", "progress"),
            Arrow("On trial", "In service", "progress"),
            Arrow("Ejected", "On trial", "ejection_time"),
            Arrow("On trial", "Ejected", "another fault"),
        ],
    ),
    "live-weights": Diagram(
        [
            Row(
                [Box("Replicas", "engines and GPUs", plain=True), Box("Measure", "speed at the current batch size")],
                gap=60,
            ),
            Row(
                [Box("Proxies", "distribute requests by weight", plain=True), Box("Propose", "compare with peers")],
                gap=60,
            ),
            Row([Box("Publish", "changes above the deadband"), Box("Limit", "floor, ceiling, max_step")], gap=60),
        ],
        [
            Arrow("Replicas", "Measure", "metrics"),
            Arrow("Measure", "Propose", "speed"),
            Arrow("Propose", "Limit", "proposed"),
            Arrow("Limit", "Publish", "decided"),
            Arrow("Publish", "Proxies", "published"),
            Arrow("Proxies", "Replicas", "requests"),
        ],
    ),
    "shares": Diagram(
        [
            Row([Box("Declared", "capacities and drains in the fleet files")]),
            Row([Box("Decided", "by weights, health, overrides and drains")]),
            Row([Box("Acknowledged", "the share that every proxy has applied")]),
            Row([Box("Observed", "requests of the last minute, as counted by proxies")]),
        ],
        [
            Arrow("Declared", "Decided", "lbctl serve decides"),
            Arrow("Decided", "Acknowledged", "proxies apply it"),
            Arrow("Acknowledged", "Observed", "proxies report requests"),
        ],
    ),
    "picking": Diagram(
        [
            Row([Box("lbctl serve", "weights, health, work in flight"), Box("Client", columns=2, plain=True)], gap=52),
            Row([Box("Picker", "chooses a replica"), Box("Proxy", "sends the request", columns=2, plain=True)], gap=52),
            Row(
                [
                    None,
                    Box("Picked replica", "chosen by the picker", plain=True),
                    Box("Another replica", "chosen by otherwise", plain=True),
                ],
                gap=52,
            ),
        ],
        [
            Arrow("lbctl serve", "Picker", "table"),
            Arrow("Client", "Proxy", "1 request"),
            Arrow("Proxy", "Picker", "2 query"),
            Arrow("Picker", "Proxy", "3 reply"),
            Arrow("Proxy", "Picked replica", "4 send"),
            Arrow("Proxy", "Another replica", "timeout", dashed=True),
        ],
    ),
    "rollouts": Diagram(
        [
            Row([Box("Waiting", "until the target pool has an available replica")]),
            Row([Box("Step", "every proxy gets the new split")]),
            Row([Box("Hold", "in analysis mode: compares the new pool with the old ones")]),
            Row([Box("Promoted", "the last split stays"), Box("Rolled back", "the split in the file applies")]),
        ],
        [
            Arrow("Waiting", "Step", "start"),
            Arrow("Step", "Hold", "a proxy has\napplied it"),
            Arrow("Hold", "Step", "not worse:\nnext step"),
            Arrow("Hold", "Promoted", "last step\nis done"),
            Arrow("Hold", "Rolled back", "worse, or no\nreplica left", dashed=True),
        ],
    ),
    "high-availability": Diagram(
        [
            Row(
                [
                    Box("Envoy proxies", "connect to any member", columns=3, plain=True),
                    Box("nginx, HAProxy", plain=True),
                ]
            ),
            Row([Box("Follower 1", "publishes"), Box("Follower 2", "publishes"), Box("Leader", "decides", columns=2)]),
            Row([Box("Store", "Redis, etcd or Kubernetes: lease, decisions, history", plain=True)]),
        ],
        [
            Arrow("Follower 1", "Envoy proxies", "xDS"),
            Arrow("Follower 2", "Envoy proxies", "xDS"),
            Arrow("Leader", "Envoy proxies", "xDS"),
            Arrow("Leader", "nginx, HAProxy", "drives"),
            Arrow("Store", "Follower 1", "reads"),
            Arrow("Store", "Follower 2", "reads"),
            Arrow("Leader", "Store", "writes"),
        ],
    ),
    "security": Diagram(
        [
            Row(
                [
                    Box("Any user", "can only read", plain=True),
                    Box("Operator", "has a token", plain=True),
                    Box("Envoy", "same user as serve", plain=True),
                ],
                group="machine that runs lbctl serve",
            ),
            Row(
                [Box("lbctl serve", "its state directory is readable only by its own user")],
                group="machine that runs lbctl serve",
            ),
            Row(
                [
                    Box("API client", "has a token", plain=True),
                    Box("Remote Envoy", "has a certificate", plain=True),
                    Box("Store", "shared by members", plain=True),
                ],
                group="network",
            ),
        ],
        [
            Arrow("Any user", "lbctl serve", "loopback"),
            Arrow("Operator", "lbctl serve", "token"),
            Arrow("Envoy", "lbctl serve", "xds.sock"),
            Arrow("API client", "lbctl serve", "TLS, token"),
            Arrow("Remote Envoy", "lbctl serve", "mTLS"),
            Arrow("Store", "lbctl serve", "signed"),
        ],
    ),
}
"""Name of the file in docs/images → its diagram."""


def pages() -> dict[str, Callable[[], str]]:
    """Return for each path in the repository the function that makes its text."""
    return {f"docs/images/{name}.svg": diagram.svg for name, diagram in DIAGRAMS.items()}
