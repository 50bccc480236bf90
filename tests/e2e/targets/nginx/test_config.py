"""nginx accepts the rendered files; its errors are reported at their places in the fleet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.apply.placeholders import stand_in
from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.pools import (
    Affinity,
    Balance,
    HashKey,
    Pool,
    Replica,
)
from lbctl.ir.routes import Forward, Route, Share
from lbctl.targets.nginx import TARGET
from tests.support.nginx import checker_errors, nginx_view, replica_at, socket_in, view_of, view_of_everything


def test_nginx_accepts_all_features_at_once(tmp_path: Path) -> None:
    view = stand_in(view_of_everything((1, 22)), tmp_path, lambda path: None)
    assert checker_errors(TARGET.render(view), tmp_path) == ""


def test_rejected_line_is_reported_at_its_replica(tmp_path: Path) -> None:
    pool = Pool("p", (Replica("lost", Address("replica.invalid", 1)),))
    bundle = TARGET.render(view_of(pool))
    (complaint,) = TARGET.complaints(checker_errors(bundle, tmp_path), bundle)
    assert "host not found" in complaint.message
    assert complaint.file == "nginx.conf"
    assert bundle.main.sources[complaint.line or 0] == ("pools", "p", "replicas", "lost")


@pytest.mark.parametrize("algorithm", ["least_time", "hash"])
def test_rejected_algorithm_is_reported_at_its_pool(algorithm: str, tmp_path: Path) -> None:
    """nginx 1.22 rejects `least_time` and the parameter `route` of a server, which newer versions accept."""
    balance = Balance("hash", HashKey("source_ip")) if algorithm == "hash" else Balance("least_time")
    pools = (
        Pool("other", (replica_at("a", 8001),)),
        Pool("p", (replica_at("a"),), balance=balance, affinity=Affinity("lb")),
    )
    routes = (Route("r", Forward((Share("other", 1), Share("p", 1)))),)
    bundle = TARGET.render(
        nginx_view(Listener("public", socket_in(tmp_path), rules=(Rule("r"),)), routes, pools, (1, 31))
    )
    http11 = replace(bundle.files[0], text=bundle.main.text.replace("http2 on;", ""))
    (complaint,) = TARGET.complaints(checker_errors(replace(bundle, files=(http11,)), tmp_path), bundle)
    path = {"least_time": ("balance", "algorithm"), "hash": ("replicas", "a")}[algorithm]
    assert bundle.main.sources[complaint.line or 0] == ("pools", "p", *path)
