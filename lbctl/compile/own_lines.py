"""Checks proxies' own-lines files for the right kind of proxy, an existing place, and readable text.

The content of the lines is checked by the target (`Target.refusals`) and by the proxy's own checker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from lbctl.base.diagnostics import Path, show
from lbctl.base.errors import reason_of
from lbctl.compile.allowed_files import may_read, refusal
from lbctl.compile.context import Context
from lbctl.compile.files import file_of, leads_out, read_regular
from lbctl.ir.own_lines import OwnLines
from lbctl.model import control as model
from lbctl.model.node import Node, descend

_CODES = {"listeners": "LB102", "routes": "LB132", "pools": "LB101"}
_MAX_BYTES = 1 << 20


def own_lines(ctx: Context, name: str, proxy: model.Proxy) -> tuple[OwnLines, ...]:
    """Read a proxy's own lines.

    Reports LB101, LB102 and LB132 (names), LB130, LB502 and LB514 (files), LB131 (places).
    """
    if proxy.include is None:
        return ()
    written = proxy.include.model_dump(by_alias=True, exclude_none=True)
    return tuple(item for place, value in sorted(written.items()) for item in _place(ctx, name, proxy, place, value))


def own_lines_nodes(root: Node) -> Iterator[Node]:
    """Yield the value of every path of own lines in a fleet."""
    proxies = root.value.get("proxies") if isinstance(root.value, dict) else None
    for proxy in proxies.value.values() if proxies is not None and isinstance(proxies.value, dict) else ():
        include = descend(proxy, ("include",))
        if include is not None:
            yield from _texts(include)


def _texts(node: Node) -> Iterator[Node]:
    if isinstance(node.value, str):
        yield node
    elif isinstance(node.value, dict):
        yield from (text for child in node.value.values() for text in _texts(child))
    elif isinstance(node.value, list):
        yield from (text for child in node.value for text in _texts(child))


def _place(ctx: Context, name: str, proxy: model.Proxy, place: str, value: Any) -> Iterator[OwnLines]:
    path, places = ("proxies", name, "include", place), ctx.kinds[proxy.kind].own_line_places
    if place not in places:
        hint = f"{proxy.kind} supports {', '.join(places)}" if places else f"{proxy.kind} does not support own lines"
        ctx.error("LB131", f"{proxy.kind} does not support own lines at {show(place)}", path, hint, key=True)
        return
    if proxy.form == "fragment" and not places[place].in_fragments:
        message = f"a fragment cannot contain a `{place}` section, which belongs to the host's configuration"
        ctx.error("LB131", message, path, "put these lines in one of the host's configuration files", key=True)
        return
    section = places[place].section
    by_owner: Mapping[str, list[str]] = value if section else {"": value}
    for owner, files in sorted(by_owner.items()):
        here = (*path, owner) if owner else path
        noun = section.removesuffix("s")
        if owner and not ctx.check_name(_CODES[section], noun, owner, ctx.source.names(section), here, key=True):
            continue
        route = ctx.fleet.routes.get(owner) if section == "routes" else None
        if route is not None and route.respond is not None:
            ctx.error(
                "LB131", f"the proxy itself responds on {owner}, so there is no place for own lines", here, key=True
            )
            continue
        for index, file in enumerate(files):
            text = _text(ctx, (*here, index))
            if text is not None:
                yield OwnLines(place, owner, index, file, text)


def _text(ctx: Context, path: Path) -> str | None:
    node = descend(ctx.source.root, path)
    assert node is not None
    if leads_out(ctx.source, node):
        message = f"{show(str(node.value))} points outside its directory"
        ctx.error("LB502", message, path, "keep the file below the fleet's directory, or use its absolute path")
        return None
    refused = refusal(ctx.source, path, node)
    if refused is not None:
        ctx.diagnostics.add(refused)
        return None
    file = file_of(ctx.source, node)
    content = ctx.source.target_contents.get(str(file))
    try:
        accept = partial(may_read, ctx.source, path, node)
        text = (read_regular(file, _MAX_BYTES, accept) if content is None else content).decode("utf-8-sig")
    except FileNotFoundError:
        message = f"the file {show(str(node.value))} with own lines does not exist"
        ctx.missing(
            "LB130", message, path, "create the file; render and serve need it", required=ctx.requires_own_lines
        )
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "not UTF-8"
        ctx.error("LB130", f"the own lines in {show(str(node.value))} cannot be read: {reason}", path)
        return None
    if "\x00" in text:
        ctx.error("LB130", f"{show(str(node.value))} contains a NUL byte, so it is not text", path)
        return None
    return text
