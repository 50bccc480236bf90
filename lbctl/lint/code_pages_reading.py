"""The pages of codes about reading a fleet's files and about references between its objects."""

from __future__ import annotations

from lbctl.base.diagnostics import Severity
from lbctl.lint.page import CodePage
from lbctl.targets import KINDS


def code_page(code: str, title: str, what: str, advice: str, severity: Severity = "error") -> CodePage:
    """Return the page of a code that needs no example fleet."""
    return CodePage(code, title, what, advice=advice, severity=severity)


READING = (
    code_page(
        "LB001",
        "no such file or directory",
        "A PATH is not there, or is a directory without *.yaml and *.yml.",
        "Check the path; sub-directories and dot-files of a directory are not read.",
    ),
    code_page(
        "LB002",
        "a file that cannot be read",
        "A PATH is no regular file, or this user may not read it.",
        "Give files and directories alone; `-` is standard input.",
    ),
    code_page("LB003", "not UTF-8", "The bytes of a file are no UTF-8 text.", "Save it as UTF-8, without UTF-16."),
    code_page(
        "LB004",
        "not the YAML of a fleet",
        "The text is no YAML, or no map of keys and values, or it holds a second document.",
        "Begin with `version: 1`, `listeners:`, `routes:`, `pools:`; look at the line above the one that is shown too.",
    ),
    code_page(
        "LB005",
        "too large",
        "A file, its nesting, its number of values or one of its numbers is beyond a limit that "
        "keeps a hostile file from exhausting memory.",
        "Split the fleet into several files; quote what is text.",
    ),
    code_page(
        "LB006",
        "an anchor, an alias or a merge key",
        "YAML's ways to repeat oneself are refused: a file of 400 bytes can expand to gigabytes.",
        "Use `defaults`, which are laid under every pool and route.",
    ),
    code_page(
        "LB007",
        "a tag",
        "A value has a YAML tag, as `!!python/object`.",
        "Remove it; quote a value that begins with `!`.",
    ),
    code_page(
        "LB008",
        "a key that occurs twice",
        "A map holds one key twice; most readers would silently take the last.",
        "Keep one of them.",
    ),
    code_page(
        "LB009",
        "a name that is defined twice",
        "Two files of one fleet define the same object.",
        "Keep one of them, or rename one.",
    ),
    code_page(
        "LB010", "no version", "`version: 1` is missing in a file, or it is another one.", "Begin each file with it."
    ),
    code_page(
        "LB011",
        "an unknown key",
        "lbctl does not know this key here, so it would have no effect.",
        "The message says what may have been meant; `lbctl schema` gives it to editors.",
    ),
    code_page(
        "LB012",
        "an invisible character",
        "A file contains a control character, or one that changes the direction of text: an editor would show another "
        "text than lbctl reads.",
        "Remove it.",
    ),
    code_page(
        "LB013",
        "a value that this key cannot have",
        "The value is of another type or grammar.",
        "Durations 250ms 5s 10m, sizes 64KiB 10MiB, percents 12.5%, rates 50/s; quote what is text.",
    ),
    code_page(
        "LB014",
        "something is missing",
        "A key that is needed is not there, has no value, or none of several choices was made.",
        "Write it, or leave the whole section out.",
    ),
    code_page("LB015", "choices that exclude each other", "Mutually exclusive keys are both set.", "Keep one of them."),
    code_page(
        "LB016",
        "out of range",
        "A number is too small or too large, a text too long, or a list is empty.",
        "The message says the bound.",
    ),
    code_page(
        "LB017",
        "a comment that silences nothing",
        "`# lbctl: ignore LBnnn (reason)` is on a line where that code is not found, or the code is that of an "
        "error, which cannot be ignored.",
        "Remove it (`lbctl lint --fix` does): it would hide the next one that comes there.",
        "warning",
    ),
    code_page(
        "LB018",
        "a comment that lbctl cannot read",
        "`# lbctl: ignore` without codes, with one that there is not, without a reason in parentheses, or with "
        "something behind it.",
        "Write `# lbctl: ignore LB210 (why it is right here)`; several codes with commas.",
        "warning",
    ),
    code_page(
        "LB030",
        "a trace that cannot be replayed",
        "A row of the trace of `lbctl simulate` has no time or length, is earlier than the row above it, or the "
        "file has no requests, or is none.",
        "Sort it by time and remove what is incomplete; docs/reference/simulate.md names the columns.",
    ),
    code_page(
        "LB031",
        "a trace that pauses for more than a day",
        "Between two rows of the trace of `lbctl simulate` more than a day passes. The first such row is shown; the "
        "trace is replayed as it is.",
        "Look at the unit: a CSV has seconds, JSON lines have milliseconds. Take out a pause that is meant.",
        "warning",
    ),
    code_page(
        "LB032",
        "a file of engines that cannot be used",
        "The file of `lbctl simulate --engine` is not a map of costs (a, b, c, p, sequences, cache), for itself or "
        "under `gpus` by type of GPU.",
        "docs/reference/simulate.md shows one.",
    ),
    code_page(
        "LB033",
        "a trace whose times have another unit",
        "The first time in a CSV for `lbctl simulate` is 100,000,000,000 or more, which no time in seconds is: all "
        "times of the file are read as milliseconds. Or the first one of JSON lines, which are read as milliseconds, "
        "looks like seconds of the epoch.",
        "Write seconds into a CSV, and milliseconds into JSON lines.",
        "warning",
    ),
)
REFERENCES = (
    code_page(
        "LB101", "no such pool", "A route names a pool that the fleet does not have.", "The message says the nearest."
    ),
    code_page(
        "LB102",
        "no such listener",
        "A route or a proxy names a listener that the fleet does not have.",
        "The message says the nearest.",
    ),
    code_page(
        "LB103",
        "no such kind of proxy",
        f"lbctl renders for {', '.join(KINDS[:-1])} and {KINDS[-1]}.",
        "Choose one of them.",
    ),
    code_page("LB104", "two replicas of one name", "Names of replicas are unique in a pool.", "Give each its own."),
    code_page(
        "LB105",
        "two replicas at one address",
        "A pool has one address twice: it would get twice its share.",
        "Keep one of them; `weight` says that it can carry more.",
    ),
    code_page(
        "LB106",
        "a key without meaning where the proxy answers",
        "A route with `respond` has a key that is for requests that go on.",
        "Leave it out; limits do not hold there, and `auth` only for a list of models.",
    ),
    code_page(
        "LB107", "a sticky split without a split", "There is nothing to stick to.", "A split of two pools or more."
    ),
    code_page("LB108", "a fallback on itself", "The fallback is a pool of the route.", "Another pool."),
    code_page(
        "LB109",
        "a rewrite without a prefix",
        "`rewrite.path_prefix` replaces `match.path_prefix`, which is not there.",
        "Match by path_prefix.",
    ),
    code_page(
        "LB110",
        "a file that is not here",
        "The fleet names a file that this machine does not have, or that this user cannot reach; the message says why.",
        "Put it there, or render where it is; `--require-files` makes it an error.",
        "warning",
    ),
    code_page("LB111", "a header that is set and removed", "Both rules cannot hold.", "Keep one of them."),
    code_page(
        "LB112",
        "two listeners at one address",
        "Only one can have the port: of listeners, the pages of proxies, and the picker of pools with `algorithm: "
        "pick`, which has the port of `control.picker.bind` and the next one.",
        "Give one another port.",
    ),
    code_page("LB113", "a proxy that is too old", "lbctl does not render for this version.", "Update the proxy."),
    code_page(
        "LB114",
        "a file of targets that cannot be used",
        "It is missing (a warning), or not in Prometheus' file_sd form.",
        'Write `[{"targets": ["10.0.0.1:8000"], "labels": {"gpu": "L4"}}]`.',
    ),
    code_page(
        "LB115",
        "residency that leaves nothing",
        "No replica of a pool is in a region that the route allows.",
        "Give replicas their `region`, or allow another.",
    ),
    code_page(
        "LB116",
        "a route that never gets a request",
        "Another one matches the same and comes first by its name.",
        "Make one of the two more specific.",
        "warning",
    ),
    code_page("LB117", "no listeners", "There is nothing to render.", "Add `listeners`."),
    code_page(
        "LB118",
        "one name, two files",
        "Files of the same relative path lie in two directories of the fleet; a proxy has one directory.",
        "Give each its own name.",
    ),
    code_page(
        "LB119",
        "a header that is not the fleet's",
        "The header carries the message itself, or is a proxy's own.",
        "Use a name of your own, as x-tenant.",
    ),
    code_page(
        "LB150",
        "a file that holds no secret of a header",
        "A header has one line of printable ASCII; this file is empty, has several lines or other characters.",
        "The secret alone in the file; its text is never shown.",
    ),
    code_page(
        "LB151",
        "a credential in plain text",
        "The credential would be in diffs, in the API and in logs.",
        'A file of its owner alone: `authorization: {prefix: "Bearer ", file: secrets/provider-key}`.',
    ),
    code_page(
        "LB165",
        "a try that may outlast its request",
        "`timeouts.attempt` is the time of one try of several, `timeouts.request` that of all.",
        "An `attempt` shorter than the `request`, or none.",
    ),
    code_page(
        "LB160",
        "two places for a pool's key",
        "`credentials` is the key of replicas of your own, and `upstream` is a hosted API, whose keys are in "
        "`upstream.headers`.",
        "Keep one of the two.",
    ),
    code_page("LB152", "a hosted API by gRPC", "`upstream` is for APIs of HTTP.", "`protocol: http1` or `http2`."),
    code_page(
        "LB153",
        "ranks that cannot be",
        "`ports` counts from the port of `address` on: the last one must exist, a socket has none, and devices are "
        "divided evenly.",
        'As `{name: dp, address: "10.0.0.1:9010", ports: 4}`.',
    ),
    code_page(
        "LB155",
        "statuses of busy replicas without their retry",
        "`retry.busy_statuses` is set without `replica_busy` in `retry.when`: no status is retried.",
        "As `retry: {when: [connect_failure, replica_busy], busy_statuses: [503]}`.",
    ),
    code_page("LB120", "one header for two things", "Two features would write the same header.", "Give each its own."),
    code_page(
        "LB122",
        "an address that no replica can have",
        "A replica is at a link-local address, that of a cloud's metadata service, multicast or 0.0.0.0, however it is "
        "written, or where `lbctl serve` or a proxy's administration listens (a warning where the fleet itself lists "
        "it). A file of targets may name no socket either.",
        "Write the address at which the replica serves. Requests of clients would reach the machine's credentials, or "
        "whoever administers it.",
    ),
    code_page(
        "LB123",
        "a context without a kubeconfig",
        "`discovery.kubernetes` chooses a context, but in a pod there is only the cluster of that pod.",
        "Name the kubeconfig that has the context, or leave the context out.",
    ),
    code_page(
        "LB124",
        "two HAProxies in one directory",
        "A HAProxy with picks or spare server slots has `pick.lua` or `slots.map` beside its configuration; two in one "
        "directory would overwrite each other's.",
        "Give each `config` its own directory.",
    ),
    code_page(
        "LB140",
        "a word in braces that is no variable",
        "The value of a header that a route sets has a word in braces that is none of `{client_ip}`, `{request_id}`, "
        "`{tenant}`, `{host}`, `{listener}`, `{route}`, `{pool}`.",
        "Write one of these. Any other brace is plain text, as in JSON; no word in braces can be sent as such.",
    ),
    code_page(
        "LB141",
        "a variable where it has no value",
        "The headers `host` and `content-type` hold no variables, and a route on which the proxy answers itself has no "
        "`{pool}`.",
        "Write the text itself, or use a header of your own.",
    ),
    code_page(
        "LB125",
        "a setting that the store does not have",
        "`tls` is for stores that are reached by TLS, and `user` needs `password`. A store in Kubernetes has its "
        "account and its certificates from the pod or from KUBECONFIG, and the name in its URL is what its objects "
        "begin with.",
        "The message says what takes its place.",
    ),
    code_page(
        "LB161",
        "a session and the picker in one pool",
        "A pool with `algorithm: pick` has `affinity.header`. The picker chooses a replica for each request, so that a "
        "session that a replica named would leave it.",
        "Choose another algorithm for this pool.",
    ),
    code_page(
        "LB142",
        "a revocation list without an authority",
        "A listener, or the port for Envoys, has `client_crl` and no `client_ca`: clients are asked for no "
        "certificate.",
        "Add `client_ca`, or leave the list out.",
    ),
    code_page(
        "LB143",
        "two kinds of credentials in one place",
        "`auth.basic` is set together with `api_keys` or `jwt`, or one file is named as users and as keys.",
        "Give each kind its own route or file.",
    ),
    code_page(
        "LB130",
        "own lines that cannot be read",
        "A file that `include` names is missing, unreadable, larger than 1 MiB or no text. For `validate`, `lint` and "
        "`explain` a missing one is a warning.",
        "Put the file beside the fleet, below its directory; a fleet without its own lines is not rendered or served.",
    ),
    code_page(
        "LB131",
        "no such place for own lines",
        "`include` names a place that this kind of proxy does not have, the `global` section of a fragment, or the "
        "location of a route on which the proxy itself answers.",
        "nginx has `http`, `server` and `location`, HAProxy `global`, `frontend` and `backend`, Envoy `http_filters`.",
    ),
    code_page(
        "LB132",
        "own lines for an unknown route",
        "`include.location` names a route that the fleet does not have.",
        "Use the name of a route; listeners and pools are LB102 and LB101.",
    ),
    code_page(
        "LB133",
        "own lines that leave their place",
        "A file of own lines has a `}` too many, a quote or a directive without its end (nginx), a keyword that begins "
        "another section, a `server` or a line that could go on (HAProxy), or is no typed HTTP filter (Envoy).",
        "Write whole directives that belong where the file is included. What comes after them is lbctl's, and would "
        "otherwise be read as something else.",
    ),
    code_page(
        "LB134",
        "a fragment that cannot be one",
        "`form: fragment` is set for a kind without fragments, without the absolute path of its file (`config`), or "
        "together with a setting of the whole process (`user`, `group`, `chroot`, `slots`).",
        "Give `config` the path at which the host's main file reads it, and leave settings of the process to the host.",
    ),
    code_page(
        "LB135",
        "a fragment lacks what it relies on",
        "HAProxy has these settings in `global` alone, and a fragment has none: `tune.bufsize` for routes by the model "
        "or other reading of bodies, Lua for picked replicas, `ssl-load-extra-del-ext` for a key beside x.crt.",
        "Run a whole HAProxy for such routes. lbctl does not guess what the host has set: with a smaller buffer "
        "HAProxy would read the beginning of a body alone, and route it as if the rest did not exist.",
    ),
    code_page(
        "LB136",
        "the fragment is not part of the main file",
        "`render --within MAIN` found no `include` that leads to the fragment's `config`, or could not read MAIN.",
        "Name the main file that nginx or HAProxy is started with, and include the directory of `config` there.",
    ),
    code_page(
        "LB144",
        "a service that cannot be asked",
        "The `url` of `auth.external` is not http with an IP address, or its `tenant_header` is not in `accept`.",
        "Write it as http://127.0.0.1:9191/check: a proxy that looks a name up when it starts may not start at all.",
    ),
    code_page(
        "LB145",
        "a relative path of a proxy that runs",
        "`config` beside `reload`, or `runtime_api`, is a relative path.",
        "Write it from the root. nginx takes a relative path from its prefix, HAProxy from the directory that it was "
        "started in, and `serve` from its own: they would not meet.",
    ),
)
