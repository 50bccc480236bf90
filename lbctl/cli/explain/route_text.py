"""The rows of `lbctl explain route` as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.cli.explain.route_rows import Row

_REPLICAS = 4


def lines(row: Row) -> Iterator[str]:
    """Yield the lines of one row of `route_rows`."""
    yield ""
    yield f"{', '.join(row['on'])}:"
    if row["read"]:
        model = f", model {row['read']['model']}" if row["read"]["model"] is not None else ""
        yield f"  read as    host {row['read']['host'] or '(none)'}, path {row['read']['path']}{model}"
    if row["route"]:
        yield f"  route      {row['route']}  {row['at']}"
        yield f"             because of {row['match']}"
    if row["status"]:
        yield f"  answer     {row['status']}: {row['why']}"
    yield from (f"             {text}" for text in row.get("losses", ()))
    for item in row["also"]:
        yield f"  matches    {item['route']} too ({item['match']}); {row['route']} wins by its {item['decided_by']}"
    for item in row["missed"]:
        yield f"  not        {item['route']}: {'; '.join(map(_failed, item['failed']))}"
    if "choice" in row:
        yield f"  pool       {row['choice']['reason']}  {row['choice']['at']}"
        yield from (f"             {_probability(item)}" for item in row["pools"])
        yield from (f"             {text}" for text in row["choice"]["then"])
    for number, item in enumerate(row.get("policy", ())):
        yield f"  {'policy' if not number else '':<10} {item['path']}: {item['value']}  {item['at'] or 'default'}"


def _failed(item: Row) -> str:
    name = f"{item['kind']} {item['name']}" if item["name"] else item["kind"]
    actual = "there is none" if item["actual"] is None else f"it is {item['actual']}"
    return f"needs {name} {item['wanted']}, {actual}"


def _probability(item: Row) -> str:
    parts = sorted(item["replicas"].items(), key=lambda part: (-part[1], part[0]))
    shown = ", ".join(f"{name} {100 * share:.1f}%" for name, share in parts[:_REPLICAS])
    more = f", and {len(parts) - _REPLICAS} more" if len(parts) > _REPLICAS else ""
    return f"{100 * item['probability']:.4g}% {item['pool']}, {item['algorithm']} over {shown or 'discovery'}{more}"
