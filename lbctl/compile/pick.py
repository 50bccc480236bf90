"""`balance.pick`: how the picker chooses a replica for each request."""

from __future__ import annotations

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.compile.convert import maybe
from lbctl.ir import pools as ir
from lbctl.model import pool as model

_LAST_PORT = 65535


def pick(ctx: Context, path: Path, section: model.Pick) -> ir.PickPolicy:
    """Resolve the section `pick` of the balance at `path`. Reports LB302."""
    if section.bound <= 1:
        place = (*path, "pick", "bound")
        ctx.error("LB302", f"a bound of {section.bound:g} leaves no room", place, "above 1, as 1.25")
    keys = model.PICK_SESSION if section.session is None else section.session
    session = tuple(_session_key(key) for key in keys)
    if section.session is None and section.prefix is None:
        session = tuple(key for key in session if key.header)
    prefix = maybe(section.prefix, lambda item: ir.Prefix(item.block, item.blocks))
    return ir.PickPolicy(tuple(dict.fromkeys(session)), prefix, section.bound, int(section.timeout))


def check_picker(ctx: Context) -> None:
    """Report a picker's address without a port after it, which HAProxy and nginx ask. Reports LB307."""
    bind = ctx.fleet.control.picker.bind
    if bind.path or bind.port >= _LAST_PORT:
        hint = "ip:port, and the port after it for HAProxy and nginx"
        ctx.error(
            "LB307", f"the picker needs two ports, and {bind} has no next one", ("control", "picker", "bind"), hint
        )


def _session_key(key: str | model.BodyKey) -> ir.SessionKey:
    return ir.SessionKey(header=key) if isinstance(key, str) else ir.SessionKey(body=key.body)
