"""The codes that are no rule of lint: what each means, and what to do. `pages` puts them together with the others.

A code is never used again for another thing; one that lbctl no longer emits keeps its line here.
"""

from __future__ import annotations

from lbctl.lint.page import Page
from lbctl.lint.words_reading import READING, REFERENCES, told

WEIGHTS = (
    told(
        "LB201",
        "not a weight",
        "A weight is a positive number up to 1,000,000, with six decimals at most.",
        "Better still: name the `gpu`, and leave the weight to the table.",
    ),
    told(
        "LB202",
        "a weight of 0",
        "nginx and Envoy refuse it, HAProxy takes it: it means three things.",
        "`drain: true` takes a replica out on all of them.",
    ),
    told(
        "LB203",
        "a replica without GPU and weight beside others with one",
        "Its share would be arbitrary.",
        "Give it one, or none to all.",
    ),
    told(
        "LB204",
        "a GPU that is not in the table",
        "lbctl does not know what it can carry.",
        "`lbctl gpus` lists the known ones; add yours under `gpus:` with a throughput (A100-80GB = 5).",
    ),
    told("LB205", "gpu_count against devices", "The number of devices is another.", "Leave gpu_count out."),
    told(
        "LB206",
        "a share that whole weights cannot hold",
        "Weights of proxies are whole numbers; here the share of a replica is off by more than 2 %.",
        "Capacities whose ratios fit, or a pool of its own for the smallest.",
        "warning",
    ),
    told("LB207", "a split of nothing", "The weights of a split sum to zero.", "At least one above zero."),
    told(
        "LB208",
        "a pool whose every replica is drained",
        "Routes that lead there without a fallback get no answer from it.",
        "Leave one that is not drained, or give the route a fallback.",
        "warning",
    ),
)
TIMES = (
    told(
        "LB301",
        "a hash without its key, or a key without hash",
        "`algorithm: hash` needs `hash.key`, and the reverse.",
        "`balance: {algorithm: hash, hash: {key: {header: x-session}}}`.",
    ),
    told("LB302", "a bound that leaves no room", "`bounded_load` is a multiple of the mean, above 1.", "As 1.25."),
    told(
        "LB303",
        "slow start on a hash ring",
        "A ring that changes for a minute moves every key, so it is left out.",
        "Remove `slow_start`.",
        "warning",
    ),
    told(
        "LB304",
        "a check that outlives its interval",
        "The next check starts before the timeout of the last one.",
        "A timeout of at most the interval.",
    ),
    told("LB305", "a backoff that begins above its end", "`base` is longer than `max`.", "At least as long a `max`."),
)
SECURITY = (
    told(
        "LB501",
        "a private key in the file",
        "Fleet files stand in git, in diffs and in tickets.",
        "Put the key into a file of its own and name that; the one that stood here is burnt.",
    ),
    told(
        "LB502",
        "a path out of the fleet's directory",
        "A relative path leads above the directory of the PATH.",
        "Keep the file below it, or give an absolute path.",
    ),
    told(
        "LB503",
        "a key file that lets nobody in",
        "It cannot be read, or holds no key: the route is rendered closed.",
        "Put the file where the proxy is rendered.",
        "warning",
    ),
    told("LB504", "user or password in a URL", "They would stand in logs.", "An address without them."),
    told(
        "LB505", "half a client certificate", "A certificate needs its key, and the key its certificate.", "Name both."
    ),
    told(
        "LB506",
        "a limit by tenant where none is known",
        "The route has no auth, or its tokens name no tenant.",
        "Add `auth`, or `jwt.tenant_claim`.",
    ),
    told(
        "LB507",
        "a line that is no key",
        'A file of API keys holds "key: tenant" or "sha256:<hex>: tenant".',
        "Correct the line; its text is never shown.",
    ),
    told(
        "LB508",
        "a file that is no JWKS",
        "A JSON object with a list of public keys is needed.",
        "Fetch it from the issuer; private and symmetric keys are refused.",
    ),
    told(
        "LB510",
        "serve would hand out the fleet",
        "xDS beyond loopback without client certificates.",
        "Give control.xds.tls a certificate, a key and a client_ca, or say --insecure.",
    ),
    told(
        "LB511",
        "serve would let anybody move traffic",
        "The API beyond loopback without TLS and token.",
        "Give control.api a tls and a token_file.",
    ),
)
SIGNALS = (
    told(
        "LB601",
        "a source that does not say what it is about",
        "`custom` needs a metric and a signal, `prometheus` a query and a signal.",
        "The message shows one that is whole.",
    ),
    told(
        "LB602",
        "a unit that this signal cannot have",
        "As seconds for a queue.",
        "The units: requests, ratio, percent, bytes (KiB, MB …), celsius, seconds (milliseconds …), tokens/s.",
    ),
    told(
        "LB603",
        "adaptive weights without evidence",
        "No source of the pool tells how fast a replica is at its present batch: its weights stay on the capacities.",
        "Add a source of the engine, as `kind: vllm`.",
        "warning",
    ),
)
ROLLOUTS = (
    told(
        "LB701",
        "a rollout to a pool outside the split",
        "Its `to` has no share that could grow.",
        "Name a pool of the split, with a weight of 0 if it is to begin there.",
    ),
)
RUNNING = (
    told(
        "LB901",
        "the proxy refuses what lbctl rendered",
        "Its own checker says no: an error in lbctl, or a version of the "
        "proxy that differs from the one that is named.",
        "Name the version; else report it with the line.",
    ),
    told(
        "LB902",
        "the proxy's checker warns",
        "It accepts the configuration and has something to say of it.",
        "Read it; it is shown at the line of the YAML that it came from.",
        "warning",
    ),
    told(
        "LB920",
        "a resource that is unsound",
        "lbctl's own check of what Envoy would refuse has stopped it: the last good one is still served.",
        "Report it: it is an error in lbctl.",
    ),
    told(
        "LB921",
        "an Envoy refuses a resource",
        "The NACK with its words and the line of the YAML; it is not sent again.",
        "Correct that line, or the version of the Envoy.",
    ),
    told("LB922", "a resource that cannot be read", "What was built is no message of its type.", "Report it."),
    told(
        "LB930",
        "too much would go at once",
        "More of a pool or of the fleet would vanish than `control.max_shrink` allows: what was good keeps serving.",
        "`lbctl reload --allow-shrink`, if it is meant.",
    ),
    told(
        "LB931",
        "a certificate or key that cannot be used",
        "It cannot be read, has expired, or the pair does not fit: the last good pair is still served.",
        "Renew both files together.",
    ),
    told(
        "LB932",
        "a state that cannot be used",
        "The file of the control plane's state is damaged or of another version.",
        "Restore it, or begin with an empty directory.",
    ),
    told(
        "LB960",
        "a server that init cannot tell",
        "`lbctl init --from` asked it, and it did not answer within five seconds, or not as a model server does.",
        "The message says which; give scheme, host and port of the port that answers inference, or of a GPU exporter.",
    ),
    told(
        "LB961",
        "a file that init does not write",
        "There is one of that name already, or its directory cannot be written.",
        "Another name; or standard output, to compare the two.",
    ),
    told(
        "LB962",
        "a URL that init does not ask",
        "It is no http or https URL, holds more than scheme, host and port, or its address is one that no replica has.",
        "As http://gpu1:8000; a user or password is never sent, and never shown.",
    ),
    told(
        "LB963",
        "answers that make no sound fleet",
        "What the servers said, written as a fleet, has a finding of `lint` that nobody can decide for them.",
        "The message names it; write the fleet by hand from what `lbctl init` gives without --from.",
    ),
    told(
        "LB999",
        "lbctl itself failed",
        "A fleet brought an error in lbctl to light; what was good keeps serving.",
        "Report it with the fleet, if it may be shown.",
    ),
)
WORDS: tuple[Page, ...] = (
    *READING, *REFERENCES, *WEIGHTS, *TIMES, *SECURITY, *SIGNALS, *ROLLOUTS, *RUNNING,
)  # fmt: skip
