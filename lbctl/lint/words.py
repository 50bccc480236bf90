"""The codes that are no rule of lint: what each means, and what to do. `pages` puts them together with the others.

A code is never used again for another thing; one that lbctl no longer emits keeps its line here.
"""

from __future__ import annotations

from lbctl.base.diagnostics import Severity
from lbctl.lint.page import Page


def _page(code: str, title: str, what: str, advice: str, severity: Severity = "error") -> Page:
    return Page(code, title, what, advice=advice, severity=severity)


READING = (
    _page(
        "LB001",
        "no such file or directory",
        "A PATH is not there, or is a directory without *.yaml and *.yml.",
        "Check the path; sub-directories and dot-files of a directory are not read.",
    ),
    _page(
        "LB002",
        "a file that cannot be read",
        "A PATH is no regular file, or this user may not read it.",
        "Give files and directories alone; `-` is standard input.",
    ),
    _page("LB003", "not UTF-8", "The bytes of a file are no UTF-8 text.", "Save it as UTF-8, without UTF-16."),
    _page(
        "LB004",
        "not the YAML of a fleet",
        "The text is no YAML, or no map of keys and values, or it holds a second document.",
        "Begin with `version: 1`, `listeners:`, `routes:`, `pools:`; look at the line above the one that is shown too.",
    ),
    _page(
        "LB005",
        "too large",
        "A file, its nesting, its number of values or one of its numbers is beyond a limit that "
        "keeps a hostile file from exhausting memory.",
        "Split the fleet into several files; quote what is text.",
    ),
    _page(
        "LB006",
        "an anchor, an alias or a merge key",
        "YAML's ways to repeat oneself are refused: a file of 400 bytes can expand to gigabytes.",
        "Use `defaults`, which are laid under every pool and route.",
    ),
    _page(
        "LB007",
        "a tag",
        "A value has a YAML tag, as `!!python/object`.",
        "Remove it; quote a value that begins with `!`.",
    ),
    _page(
        "LB008",
        "a key that stands twice",
        "A map holds one key twice; most readers would silently take the last.",
        "Keep one of them.",
    ),
    _page(
        "LB009",
        "a name that stands twice",
        "Two files of one fleet define the same thing.",
        "Keep one of them, or rename one.",
    ),
    _page(
        "LB010", "no version", "`version: 1` is missing in a file, or it is another one.", "Begin each file with it."
    ),
    _page(
        "LB011",
        "an unknown key",
        "lbctl does not know this key here, so it would have no effect.",
        "The message says what may have been meant; `lbctl schema` gives it to editors.",
    ),
    _page(
        "LB012",
        "an invisible character",
        "A control character, or one that changes the direction of text, stands in a "
        "file: what one reads would not be what it says.",
        "Remove it.",
    ),
    _page(
        "LB013",
        "a value that this key cannot have",
        "The value is of another type or grammar.",
        "Durations 250ms 5s 10m, sizes 64KiB 10MiB, percents 12.5%, rates 50/s; quote what is text.",
    ),
    _page(
        "LB014",
        "something is missing",
        "A key that is needed is not there, has no value, or none of several choices was made.",
        "Write it, or leave the whole section out.",
    ),
    _page("LB015", "choices that exclude each other", "Two keys stand together of which one may.", "Keep one of them."),
    _page(
        "LB016",
        "out of range",
        "A number is too small or too large, a text too long, or a list is empty.",
        "The message says the bound.",
    ),
    _page(
        "LB017",
        "a comment that silences nothing",
        "`# lbctl: ignore LBnnn (reason)` stands on a line where that code is not found.",
        "Remove it (`lbctl lint --fix` does): it would hide the next one that comes there.",
        "warning",
    ),
    _page(
        "LB018",
        "a comment that lbctl cannot read",
        "`# lbctl: ignore` without codes, or without a reason in parentheses.",
        "Write `# lbctl: ignore LB210 (why it is right here)`; several codes with commas.",
        "warning",
    ),
)
REFERENCES = (
    _page(
        "LB101", "no such pool", "A route names a pool that the fleet does not have.", "The message says the nearest."
    ),
    _page(
        "LB102",
        "no such listener",
        "A route or a proxy names a listener that the fleet does not have.",
        "The message says the nearest.",
    ),
    _page("LB103", "no such kind of proxy", "lbctl renders for nginx, haproxy and envoy.", "Choose one of them."),
    _page("LB104", "two replicas of one name", "Names of replicas are unique in a pool.", "Give each its own."),
    _page(
        "LB105",
        "two replicas at one address",
        "A pool has one address twice: it would get twice its share.",
        "Keep one of them; `weight` says that it can carry more.",
    ),
    _page(
        "LB106",
        "a key without meaning where the proxy answers",
        "A route with `respond` has a key that is for requests that go on.",
        "Leave it out; keys and limits do not hold there.",
    ),
    _page("LB107", "a sticky split without a split", "There is nothing to stick to.", "A split of two pools or more."),
    _page("LB108", "a fallback on itself", "The fallback is a pool of the route.", "Another pool."),
    _page(
        "LB109",
        "a rewrite without a prefix",
        "`rewrite.path_prefix` replaces `match.path_prefix`, which is not there.",
        "Match by path_prefix.",
    ),
    _page(
        "LB110",
        "a file that is not here",
        "The fleet names a file that this machine does not have.",
        "Put it there, or render where it is; `--require-files` makes it an error.",
        "warning",
    ),
    _page("LB111", "a header that is set and removed", "Both rules cannot hold.", "Keep one of them."),
    _page("LB112", "two listeners at one address", "Only one can have the port.", "Give one another port."),
    _page("LB113", "a proxy that is too old", "lbctl does not render for this version.", "Update the proxy."),
    _page(
        "LB114",
        "a file of targets that cannot be used",
        "It is missing (a warning), or not in Prometheus' file_sd form.",
        'Write `[{"targets": ["10.0.0.1:8000"], "labels": {"gpu": "L4"}}]`.',
    ),
    _page(
        "LB115",
        "residency that leaves nothing",
        "No replica of a pool is in a region that the route allows.",
        "Give replicas their `region`, or allow another.",
    ),
    _page(
        "LB116",
        "a route that never gets a request",
        "Another one matches the same and comes first by its name.",
        "Make one of the two more specific.",
        "warning",
    ),
    _page("LB117", "no listeners", "There is nothing to render.", "Add `listeners`."),
    _page(
        "LB118",
        "one name, two files",
        "Files of the same relative path lie in two directories of the fleet; a proxy has one directory.",
        "Give each a name of its own.",
    ),
    _page(
        "LB119",
        "a header that is not the fleet's",
        "The header carries the message itself, or is a proxy's own.",
        "Use a name of your own, as x-tenant.",
    ),
    _page("LB120", "one header for two things", "Two features would write the same header.", "Give each its own."),
)
WEIGHTS = (
    _page(
        "LB201",
        "not a weight",
        "A weight is a positive number up to 1,000,000, with six decimals at most.",
        "Better still: name the `gpu`, and leave the weight to the table.",
    ),
    _page(
        "LB202",
        "a weight of 0",
        "nginx and Envoy refuse it, HAProxy takes it: it means three things.",
        "`drain: true` takes a replica out on all of them.",
    ),
    _page(
        "LB203",
        "a replica without GPU and weight beside others with one",
        "Its share would be arbitrary.",
        "Give it one, or none to all.",
    ),
    _page(
        "LB204",
        "a GPU that is not in the table",
        "lbctl does not know what it can carry.",
        "`lbctl gpus` lists the known ones; add yours under `gpus:` with a throughput (A100-80GB = 5).",
    ),
    _page("LB205", "gpu_count against devices", "The number of devices is another.", "Leave gpu_count out."),
    _page(
        "LB206",
        "a share that whole weights cannot hold",
        "Weights of proxies are whole numbers; here the share of a replica is off by more than 2 %.",
        "Capacities whose ratios fit, or a pool of its own for the smallest.",
        "warning",
    ),
    _page("LB207", "a split of nothing", "The weights of a split sum to zero.", "At least one above zero."),
)
TIMES = (
    _page(
        "LB301",
        "a hash without its key, or a key without hash",
        "`algorithm: hash` needs `hash.key`, and the reverse.",
        "`balance: {algorithm: hash, hash: {key: {header: x-session}}}`.",
    ),
    _page("LB302", "a bound that leaves no room", "`bounded_load` is a multiple of the mean, above 1.", "As 1.25."),
    _page(
        "LB303",
        "slow start on a hash ring",
        "A ring that changes for a minute moves every key, so it is left out.",
        "Remove `slow_start`.",
        "warning",
    ),
    _page(
        "LB304",
        "a check that outlives its interval",
        "The next check starts before the timeout of the last one.",
        "A timeout of at most the interval.",
    ),
    _page("LB305", "a backoff that begins above its end", "`base` is longer than `max`.", "At least as long a `max`."),
)
SECURITY = (
    _page(
        "LB501",
        "a private key in the file",
        "Fleet files stand in git, in diffs and in tickets.",
        "Put the key into a file of its own and name that; the one that stood here is burnt.",
    ),
    _page(
        "LB502",
        "a path out of the fleet's directory",
        "A relative path leads above the directory of the PATH.",
        "Keep the file below it, or give an absolute path.",
    ),
    _page(
        "LB503",
        "a key file that lets nobody in",
        "It cannot be read, or holds no key: the route is rendered closed.",
        "Put the file where the proxy is rendered.",
        "warning",
    ),
    _page("LB504", "user or password in a URL", "They would stand in logs.", "An address without them."),
    _page(
        "LB505", "half a client certificate", "A certificate needs its key, and the key its certificate.", "Name both."
    ),
    _page(
        "LB506",
        "a limit by tenant where none is known",
        "The route has no auth, or its tokens name no tenant.",
        "Add `auth`, or `jwt.tenant_claim`.",
    ),
    _page(
        "LB507",
        "a line that is no key",
        'A file of API keys holds "key: tenant" or "sha256:<hex>: tenant".',
        "Correct the line; its text is never shown.",
    ),
    _page(
        "LB508",
        "a file that is no JWKS",
        "A JSON object with a list of public keys is needed.",
        "Fetch it from the issuer; private and symmetric keys are refused.",
    ),
    _page(
        "LB510",
        "serve would hand out the fleet",
        "xDS beyond loopback without client certificates.",
        "Give control.xds.tls a certificate, a key and a client_ca, or say --insecure.",
    ),
    _page(
        "LB511",
        "serve would let anybody move traffic",
        "The API beyond loopback without TLS and token.",
        "Give control.api a tls and a token_file.",
    ),
)
SIGNALS = (
    _page(
        "LB601",
        "a source that does not say what it is about",
        "`custom` needs a metric and a signal, `prometheus` a query and a signal.",
        "The message shows one that is whole.",
    ),
    _page(
        "LB602",
        "a unit that this signal cannot have",
        "As seconds for a queue.",
        "The units: requests, ratio, percent, bytes (KiB, MB …), celsius, seconds (milliseconds …), tokens/s.",
    ),
    _page(
        "LB603",
        "adaptive weights without evidence",
        "No source of the pool tells how fast a replica is at its present batch: its weights stay on the capacities.",
        "Add a source of the engine, as `kind: vllm`.",
        "warning",
    ),
)
ROLLOUTS = (
    _page(
        "LB701",
        "a rollout to a pool outside the split",
        "Its `to` has no share that could grow.",
        "Name a pool of the split, with a weight of 0 if it is to begin there.",
    ),
    _page(
        "LB702",
        "a rollout that nobody moves",
        "`render` writes the file's split: no proxy moves one by itself.",
        "`lbctl serve` does.",
        "warning",
    ),
)
RUNNING = (
    _page(
        "LB901",
        "the proxy refuses what lbctl rendered",
        "Its own checker says no: an error in lbctl, or a version of the "
        "proxy that differs from the one that is named.",
        "Name the version; else report it with the line.",
    ),
    _page(
        "LB902",
        "the proxy's checker warns",
        "It accepts the configuration and has something to say of it.",
        "Read it; it is shown at the line of the YAML that it came from.",
        "warning",
    ),
    _page(
        "LB920",
        "a resource that is unsound",
        "lbctl's own check of what Envoy would refuse has stopped it: the last good one is still served.",
        "Report it: it is an error in lbctl.",
    ),
    _page(
        "LB921",
        "an Envoy refuses a resource",
        "The NACK with its words and the line of the YAML; it is not sent again.",
        "Correct that line, or the version of the Envoy.",
    ),
    _page("LB922", "a resource that cannot be read", "What was built is no message of its type.", "Report it."),
    _page(
        "LB930",
        "too much would go at once",
        "More of a pool or of the fleet would vanish than `control.max_shrink` allows: what was good keeps serving.",
        "`lbctl reload --allow-shrink`, if it is meant.",
    ),
    _page(
        "LB931",
        "a certificate or key that cannot be used",
        "It cannot be read, has expired, or the pair does not fit: the last good pair is still served.",
        "Renew both files together.",
    ),
    _page(
        "LB932",
        "a state that cannot be used",
        "The file of the control plane's state is damaged or of another version.",
        "Restore it, or begin with an empty directory.",
    ),
    _page(
        "LB999",
        "lbctl itself failed",
        "A fleet brought an error in lbctl to light; what was good keeps serving.",
        "Report it with the fleet, if it may be shown.",
    ),
)
WORDS: tuple[Page, ...] = (
    *READING, *REFERENCES, *WEIGHTS, *TIMES, *SECURITY, *SIGNALS, *ROLLOUTS, *RUNNING,
)  # fmt: skip
