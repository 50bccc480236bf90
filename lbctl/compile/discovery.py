"""Discovers replicas through targets files in Prometheus's file_sd format, DNS names, and Kubernetes services.

A targets file has the form `[{"targets": ["host:port"], "labels": {…}}]`. The labels gpu, gpu_count, weight, region,
zone, priority and name become the replica's keys, and all others become its labels. The file is read when the fleet is
compiled. If the file is missing, the pool is empty and `files` reports a warning.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from lbctl.base.diagnostics import Diagnostic, Position, show
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, parse
from lbctl.base.paths import is_file
from lbctl.compile.allowed_files import of_control_plane, refusal
from lbctl.compile.context import Context, FileTarget
from lbctl.compile.convert import address, maybe, pairs
from lbctl.compile.files import file_of, read_regular
from lbctl.ir import pools as ir
from lbctl.model.errors import messages_of
from lbctl.model.kubernetes import Kubernetes, LabelSource
from lbctl.model.node import descend
from lbctl.model.pool import Discovery, Pool, Replica

_BETWEEN = re.compile(r"[\s,]*")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"')
_KEYS = frozenset({"gpu", "gpu_count", "weight", "region", "zone", "priority", "name"})
_NUMBERS = {"gpu_count": int, "priority": int, "weight": float}
MAX_BYTES = 4 << 20
_HINT = '[{"targets": ["10.0.0.1:8000"], "labels": {"gpu": "L4"}}]'


class NotAListError(ValueError):
    """The text is not a JSON list, or exceeds a limit. The message states the reason."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(reason)
        self.position = position


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """One group in a file_sd file."""

    value: Any
    """The group as parsed JSON."""
    position: Position
    """Start of the group in the file."""
    positions: dict[str, Position]
    """Maps each string in the group to the position of its first occurrence."""

    def position_of(self, target: object) -> Position:
        """Return the position of a target or, if it is not a string in the group, the position of the group."""
        return self.positions.get(target, self.position) if isinstance(target, str) else self.position


def target_groups(file: str, text: str) -> list[TargetGroup]:
    """Parse the groups in the list in `text`. Raises NotAListError."""
    try:
        document = parse(text)
    except InvalidJsonError as error:
        raise NotAListError(str(error), Position(file, error.line, error.column)) from None
    if not isinstance(document, list):
        raise NotAListError("JSON that is not a list", Position(file, 1, 1))
    return list(_located_groups(file, text, len(document)))


def _located_groups(file: str, text: str, count: int) -> Iterator[TargetGroup]:
    decoder, end = json.JSONDecoder(), text.index("[") + 1
    lines = [0, *(newline.end() for newline in re.finditer("\n", text))]

    def position(offset: int) -> Position:
        line = bisect_right(lines, offset)
        return Position(file, line, offset - lines[line - 1] + 1)

    for _ in range(count):
        separator = _BETWEEN.match(text, end)
        start = separator.end() if separator else end
        value, end = decoder.raw_decode(text, start)
        positions: dict[str, Position] = {}
        for string in _WORD.finditer(text, start, end):
            positions.setdefault(json.loads(string[0]), position(string.start()))
        yield TargetGroup(value, position(start), positions)


def discovery_of(ctx: Context, pool: str, section: Discovery | None, table: Mapping[str, float]) -> ir.Discovery | None:
    """Resolve a pool's `discovery` section.

    `table` maps GPU types to throughputs. Reports LB123 and LB204.
    """
    if section is None:
        return None
    if section.file is not None:
        return ir.FileDiscovery(section.file.path)
    if section.kubernetes is not None:
        return _kubernetes(ctx, pool, section.kubernetes)
    dns = section.dns
    assert dns is not None
    is_known = dns.gpu is None or ctx.check_name(
        "LB204", "GPU", dns.gpu, table, ("pools", pool, "discovery", "dns", "gpu")
    )
    return ir.DnsDiscovery(
        name=dns.name,
        port=dns.port,
        refresh=int(dns.refresh),
        max_replicas=dns.max_replicas,
        gpu=dns.gpu,
        resolvers=tuple(address(resolver) for resolver in dns.resolvers),
        capacity=table[dns.gpu] if dns.gpu is not None and is_known else 1.0,
    )


def with_file_targets(ctx: Context, name: str, pool: Pool) -> Pool:
    """Return the pool with the replicas from its targets file. Reports LB114 for an invalid file."""
    if pool.discovery is None or pool.discovery.file is None:
        return pool
    node = descend(ctx.source.root, ("pools", name, "discovery", "file", "path"))
    if node is None or refusal(ctx.source, ("pools", name, "discovery", "file", "path"), node) is not None:
        return pool
    file = file_of(ctx.source, node)
    content = ctx.source.target_contents.get(str(file))
    data = read_targets(file) if content is None else content
    if data is None:
        return pool
    replicas = _replicas(ctx, _groups(ctx, str(file), data))
    ctx.discovered[name] = tuple(FileTarget(position, str(address(replica.address))) for replica, position in replicas)
    return pool.model_copy(update={"replicas": [replica for replica, _ in replicas]})


def read_targets(file: Path) -> bytes | None:
    """Read a targets file.

    Return None if the file does not exist, and empty bytes if it cannot be read or is too large.
    """
    try:
        return read_regular(file, MAX_BYTES) if is_file(file) else None
    except OSError:
        return b""


def _groups(ctx: Context, file: str, data: bytes) -> list[TargetGroup]:
    try:
        found = target_groups(file, data.decode("utf-8-sig", errors="replace"))
    except NotAListError as error:
        reason = "" if data else _unreadable(Path(file))
        _refuse(ctx, error.position, reason or f"this file is {error}, not a list of targets")
        return []
    if not found:
        message, hint = "this file contains no targets, so the pool is empty", _HINT
        ctx.diagnostics.add(Diagnostic("LB114", message, Position(file, 1, 1), (), hint, "warning"))
    return found


def _unreadable(file: Path) -> str:
    """Return the reason why a targets file cannot be read, or an empty string."""
    try:
        read_regular(file, MAX_BYTES)
    except OSError as error:
        return f"this file cannot be read: {reason_of(error)}"
    return ""


def _replicas(ctx: Context, groups: list[TargetGroup]) -> list[tuple[Replica, Position]]:
    replicas: list[tuple[Replica, Position]] = []
    for index, group in enumerate(groups):
        value = group.value
        targets, labels = (value.get("targets"), value.get("labels", {})) if isinstance(value, dict) else (None, None)
        if not isinstance(targets, list) or not isinstance(labels, dict):
            message = f"group {index + 1} has no list of targets, or its labels are not a map"
            _refuse(ctx, group.position, message)
            continue
        positions = ((target, group.position_of(target)) for target in targets)
        parsed = ((_replica(ctx, position, target, labels), position) for target, position in positions)
        replicas += ((replica, position) for replica, position in parsed if replica is not None)
    return replicas


def _replica(ctx: Context, position: Position, target: object, labels: dict[str, Any]) -> Replica | None:
    keys = {key: _number(key, value) for key, value in labels.items() if key in _KEYS}
    others = {key: value for key, value in labels.items() if key not in _KEYS}
    try:
        return Replica.model_validate({"address": target, "labels": others, **keys})
    except ValidationError as error:
        for key, message, hint in messages_of(error, Replica):
            _refuse(ctx, position, f"target {show(target)}: {key}: {message}", hint)
        return None


def _number(key: str, value: object) -> object:
    """Parse a numeric label. Labels are strings in file_sd, but the model needs numbers."""
    try:
        return _NUMBERS[key](value) if key in _NUMBERS and isinstance(value, str) else value
    except ValueError:
        return value


def _refuse(ctx: Context, position: Position, message: str, hint: str = _HINT) -> None:
    ctx.diagnostics.add(Diagnostic("LB114", message, position, (), hint))


def _kubernetes(ctx: Context, pool: str, section: Kubernetes) -> ir.KubernetesDiscovery:
    """Resolve the `kubernetes` section. Reports LB123 for a context without a kubeconfig."""
    path = ("pools", pool, "discovery", "kubernetes")
    if section.context is not None and section.kubeconfig is None:
        ctx.error("LB123", "`context` is set, but `kubeconfig` is not", (*path, "context"), "kubeconfig: kube/config")
    node = descend(ctx.source.root, (*path, "kubeconfig"))
    return ir.KubernetesDiscovery(
        namespace=section.namespace,
        service=section.service or "",
        inference_pool=section.inference_pool or "",
        port=section.port or "",
        service_port=section.service_port,
        selector=pairs(section.selector or {}),
        kubeconfig=section.kubeconfig,
        kubeconfig_file=str(file_of(ctx.source, node)) if node is not None and section.kubeconfig else None,
        control_files=tuple(of_control_plane(ctx.source)) if section.kubeconfig else (),
        context=section.context,
        gpu_from=maybe(section.gpu_from, _label),
        zone_from=_zone(section.zone_from),
        max_replicas=section.max_replicas,
        gpus=tuple(sorted(ctx.fleet.gpus.items())) if section.gpu_from else (),
    )


def _label(source: LabelSource) -> ir.LabelSource:
    if source.node_label is not None:
        return ir.LabelSource("node", source.node_label)
    return ir.LabelSource("pod", source.pod_label or "")


def _zone(source: str | LabelSource | None) -> ir.LabelSource | Literal["endpoint"] | None:
    return "endpoint" if isinstance(source, str) else maybe(source, _label)
