"""The first sentence of `explain weight`, and its last line, about requests that proxies have counted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec.structs import replace

from lbctl.cli.explain.sentence import observed, sentence
from tests.support import api


def sentence_with(algorithm: str = "round_robin", **changes: Any) -> str:
    """Return the sentence about gpu3, whose declared share is a fifth, with these changes."""
    pool = replace(api.pool("chat"), algorithm=algorithm)
    return sentence(replace(api.REPLICA, **{"name": "gpu3", "declared": 0.2, "share": 0.2, **changes}), pool)


def test_expected_share_needs_no_cause() -> None:
    assert sentence_with() == "gpu3 gets 20 % of the pool's requests, according to its capacity"
    assert sentence_with(observed=0.2049) == "gpu3 gets 20 % of the pool's requests, according to its capacity"


def test_lower_share_has_its_cause_and_start_time() -> None:
    now = datetime.now().astimezone()
    slow = {"state": "slow", "state_reason": "three times slower than its peers", "share": 0.0667}
    assert sentence_with(**slow, state_since=now.isoformat()) == (
        "gpu3 gets 7 % of the pool's requests instead of 20 %: three times slower than its peers"
        f" since {now:%H:%M}"
    )  # fmt: skip
    assert (
        sentence_with(**slow, state_since="2026-01-01T12:00:00.000Z").rpartition(" since 202")[2].startswith("6-01-0")
    )
    assert sentence_with(**slow).endswith("slower than its peers")
    assert sentence_with(state="down", state_reason="the active check of ha fails: L4CON", observed=0.0) == (
        "gpu3 gets 0 % of the pool's requests instead of 20 %: the active check of ha fails: L4CON"
    )


def test_observed_share_takes_precedence_over_the_decided_one() -> None:
    assert (
        sentence_with(observed=0.05)
        == "gpu3 gets 5 % of the pool's requests instead of 20 %: lbctl has set its share to 20 %"
    )
    assert sentence_with(share=0.4) == "gpu3 gets 40 % of the pool's requests instead of 20 %: other replicas get less"
    held = sentence_with(share=0.5, reasons=("weight 4 set by an operator: test",))
    assert held.endswith("instead of 20 %: weight 4 set by an operator: test")
    assert sentence_with(declared=0.0, share=0.0, priority=1) == (
        "gpu3 gets 0 % of the pool's requests: it is a reserve with priority 1"
    )


def test_drained_replica_gets_nothing_despite_recent_requests() -> None:
    drained = {"state": "drained", "state_reason": "drained by an operator: a fan"}
    assert sentence_with(**drained, share=0.0, observed=0.19) == (
        "gpu3 gets 0 % of the pool's requests instead of 20 %: drained by an operator: a fan"
    )


def test_observed_line_lists_reporting_and_silent_proxies() -> None:
    pool = replace(
        api.pool("llama"),
        reporting=("ha",),
        silent=("edge-1", "ng"),
        unable={"ng": "it needs config and reload in proxies.ng"},
        requests_per_second=10.0,
    )
    row = replace(api.REPLICA, observed=0.066, requests_per_second=0.66)
    assert observed(row, pool) == (
        "6.6% of the last minute's requests, 0.66 a second, by ha; "
        "not reported by edge-1, ng (it needs config and reload in proxies.ng)"
    )
    assert observed(api.REPLICA, pool) == (
        "no requests, by ha; not reported by edge-1, ng (it needs config and reload in proxies.ng)"
    )
    nobody = replace(pool, reporting=(), silent=("ha",))
    assert observed(row, nobody) == "unknown: no proxy reports its traffic; not reported by ha"


def test_picked_replica_is_not_compared_with_its_capacity() -> None:
    chosen = "the picker chooses a replica for each request, based on sessions, caches and load"
    assert sentence_with("pick", observed=0.0) == f"gpu3 gets 0 % of the pool's requests: {chosen}"
    drained = {"state": "drained", "state_reason": "drained by an operator", "share": 0.0}
    assert sentence_with("pick", **drained) == "gpu3 gets 0 % of the pool's requests: drained by an operator"
