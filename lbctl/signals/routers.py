"""Metrics tables of routers that are used as replicas. A router's page describes all its engines.

Routers count requests until the response ends, including requests that wait in an engine. Requests that wait in SMG or
in llm-d's picker itself are added, so that `running` includes the `queue` of every router.
"""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

_NO_EVIDENCE = "a router does not count the steps of its engines"


def _frontend(name: str, versions: str = "") -> MetricSeries:
    return MetricSeries(f"dynamo_frontend_{name}", versions=versions)


DYNAMO = MetricsTable(
    kind="dynamo",
    title="Dynamo frontend",
    series={
        "queue": (_frontend("router_queue_pending_requests"),),
        "running": (_frontend("active_requests"), _frontend("inflight_requests", versions="older")),
        "prefill_tokens": (_frontend("input_sequence_tokens_sum"),),
        "decode_tokens": (_frontend("output_tokens_total"), _frontend("output_sequence_tokens_sum", versions="older")),
        "cache_lookups": (_frontend("input_sequence_tokens_sum"),),
        "cache_found": (_frontend("cached_tokens_sum"),),
        "ttft_seconds": (_frontend("time_to_first_token_seconds_sum"),),
        "ttft_count": (_frontend("time_to_first_token_seconds_count"),),
        "itl_seconds": (_frontend("inter_token_latency_seconds_sum"),),
        "itl_count": (_frontend("inter_token_latency_seconds_count"),),
        "finished": (_frontend("requests_total"),),
        "rejected": (_frontend("model_rejection_total"),),
    },
    no_evidence=_NO_EVIDENCE,
    heartbeat="requests",
    reserves_memory=True,
    running_includes_queue=True,
    notes=(
        "The queue is the KV router's queue, which needs `--router-queue-threshold`.",
        "Do not set `DYN_METRICS_PREFIX`. A metric appears after the first request for a model.",
        "Cached tokens are counted when a response ends, so their share in a short interval is only approximate.",
    ),
)
"""Dynamo's HTTP frontend (`python -m dynamo.frontend`), on its own port.

`dynamo_frontend_queued_requests` counts requests until their first token, even while an engine reads their prompts, so
it is not a queue length.
"""

SMG = MetricsTable(
    kind="smg",
    title="SMG",
    series={
        "queue": (MetricSeries("smg_engine_waiting_requests", also=("smg_admission_queue_depth",), gone=True),),
        "running": (MetricSeries("smg_worker_requests_active", also=("smg_admission_queue_depth",)),),
        "kv_cache": (MetricSeries("smg_engine_token_usage", gone=True),),
        "cache_hits": (MetricSeries("smg_engine_cache_hit_rate", gone=True),),
        "throughput": (MetricSeries("smg_engine_gen_throughput", gone=True),),
        "ttft_seconds": (MetricSeries("smg_router_ttft_seconds_sum", versions="gRPC workers"),),
        "ttft_count": (MetricSeries("smg_router_ttft_seconds_count", versions="gRPC workers"),),
        "finished": (MetricSeries("smg_worker_requests_total"),),
        "rejected": (MetricSeries("smg_worker_overload_shed_total", also=("smg_admission_queue_rejected_total",)),),
    },
    no_evidence=_NO_EVIDENCE,
    reserves_memory=True,
    running_includes_queue=True,
    notes=(
        "The metrics page has its own port (`--prometheus-port`, by default 29000).",
        "The router polls its engines every `--load-monitor-interval` (10 s). Set it to the pool's interval.",
        (
            "For evidence and progress, also read the engines' own metrics at `/engine_metrics` on the router's port, "
            "with `kind: vllm` or `kind: sglang`."
        ),
    ),
)
"""SMG, the successor of sglang-router.

The gauges of a removed worker become -1, because the exporter cannot delete a series. SMG has no progress signal: the
router counts requests when they begin, and stops using stalled engines by itself.
"""

LLM_D = MetricsTable(
    kind="llm_d",
    title="llm-d endpoint picker",
    series={
        "queue": (MetricSeries("llm_d_epp_per_endpoint_queue_size", also=("llm_d_epp_flow_control_queue_size",)),),
        "running": (MetricSeries("llm_d_epp_request_running", also=("llm_d_epp_flow_control_queue_size",)),),
        "kv_cache": (MetricSeries("llm_d_epp_average_kv_cache_utilization"),),
        "prefill_tokens": (MetricSeries("llm_d_epp_request_input_tokens_sum"),),
        "decode_tokens": (MetricSeries("llm_d_epp_request_output_tokens_sum"),),
        "cache_lookups": (MetricSeries("llm_d_epp_request_input_tokens_sum"),),
        "cache_found": (MetricSeries("llm_d_epp_request_cached_tokens_sum"),),
        "ttft_seconds": (MetricSeries("llm_d_epp_request_ttft_seconds_sum"),),
        "ttft_count": (MetricSeries("llm_d_epp_request_ttft_seconds_count"),),
        "itl_seconds": (MetricSeries("llm_d_epp_request_streaming_itl_seconds_sum"),),
        "itl_count": (MetricSeries("llm_d_epp_request_streaming_itl_seconds_count"),),
        "finished": (MetricSeries("llm_d_epp_request_duration_seconds_count"),),
        "rejected": (
            MetricSeries(
                "llm_d_epp_flow_control_requests_total",
                where=(("outcome", ("RejectedCapacity", "RejectedNoEndpoints", "RejectedOther")),),
                versions="with flow control",
            ),
        ),
    },
    no_evidence=_NO_EVIDENCE,
    heartbeat="requests",
    reserves_memory=True,
    running_includes_queue=True,
    notes=(
        "For a gateway with an InferencePool, read the endpoint picker's page (port 9090).",
        "The picker needs `--metrics-endpoint-auth=false`, because lbctl sends no Kubernetes token.",
        "lbctl does not read metric names from before llm-d router 0.9 (`inference_pool_…`, `inference_objective_…`).",
    ),
)
"""The endpoint picker (EPP) of llm-d's router. The router's request counters change when a request ends."""
