"""The pages of codes that are not lint rules: what each code means, and what to do.

`pages` combines them with the rules.

A code is never reused for something else; one that lbctl no longer emits keeps its page here.
"""

from __future__ import annotations

from lbctl.lint.code_pages_reading import READING, REFERENCES, code_page
from lbctl.lint.code_pages_running import RUNNING
from lbctl.lint.page import CodePage

WEIGHTS = (
    code_page(
        "LB201",
        "not a weight",
        "A weight is a positive number up to 1,000,000, with six decimals at most.",
        "Better still: name the `gpu`, and leave the weight to the table.",
    ),
    code_page(
        "LB202",
        "a weight of 0",
        "nginx and Envoy refuse it, HAProxy takes it: it means three things.",
        "`drain: true` takes a replica out on all of them.",
    ),
    code_page(
        "LB203",
        "a replica without GPU and weight beside others with one",
        "Its share would be arbitrary.",
        "Give it one, or none to all.",
    ),
    code_page(
        "LB204",
        "a GPU that is not in the table",
        "lbctl does not know what it can carry.",
        "`lbctl gpus` lists the known ones; add yours under `gpus:` with a throughput (A100-80GB = 5).",
    ),
    code_page("LB205", "gpu_count against devices", "The number of devices is another.", "Leave gpu_count out."),
    code_page(
        "LB206",
        "a share that whole weights cannot hold",
        "Weights of proxies are whole numbers; here the share of a replica is off by more than 2 %.",
        "Capacities whose ratios fit, or a separate pool for the smallest.",
        "warning",
    ),
    code_page("LB207", "a split of nothing", "The weights of a split sum to zero.", "At least one above zero."),
    code_page(
        "LB208",
        "a pool whose every replica is drained",
        "Routes that lead there without a fallback get no answer from it.",
        "Leave one that is not drained, or give the route a fallback.",
        "warning",
    ),
)
TIMES = (
    code_page(
        "LB301",
        "a hash without its key, or a key without hash",
        "`algorithm: hash`, or with `pick` `pick.otherwise: hash`, needs `hash.key`, and the reverse.",
        "`balance: {algorithm: hash, hash: {key: {header: x-session}}}`.",
    ),
    code_page(
        "LB302",
        "a bound that leaves no room",
        "`bounded_load` and the `bound` of `pick` are multiples of the mean, above 1.",
        "As 1.25.",
    ),
    code_page(
        "LB303",
        "slow start on a hash ring",
        "A ring that changes for a minute moves every key, so it is left out.",
        "Remove `slow_start`.",
        "warning",
    ),
    code_page(
        "LB304",
        "a check that outlives its interval",
        "The next check starts before the timeout of the last one.",
        "A timeout of at most the interval.",
    ),
    code_page(
        "LB309",
        "a pool that sends and refuses when no replica is healthy",
        "`health.fail_open` uses all replicas when all active checks fail; `health.load_shedding` answers 503 then.",
        "Keep `fail_open` where checks fail under load, `load_shedding` where clients have another place to go.",
    ),
    code_page(
        "LB305", "a backoff that begins above its end", "`base` is longer than `max`.", "At least as long a `max`."
    ),
    code_page(
        "LB306",
        "settings of the picker without it",
        "`balance.pick` is for `algorithm: pick`, and another algorithm is chosen.",
        "`algorithm: pick` with `pick.otherwise` as the proxy's own algorithm.",
    ),
    code_page(
        "LB307",
        "an address of the picker without a next port",
        "The picker listens at `control.picker.bind`, and proxies ask the port after it. There is none after 65535, "
        "nor after a unix socket.",
        "An IP address with a port from 1 to 65534, as 127.0.0.1:18001.",
    ),
    code_page(
        "LB308",
        "an Envoy of files cannot ask the picker there",
        "`control.picker.bind` is beyond loopback, where the picker requires client certificates by `control.xds.tls`. "
        "An Envoy that gets everything from `lbctl serve` has one in its bootstrap; the files of `lbctl render` name "
        "none, so with them every request goes by `otherwise`.",
        "Start the Envoy with `lbctl bootstrap --tls-ca F --tls-cert F --tls-key F -d DIR`, or keep "
        "`control.picker.bind` on loopback, as 127.0.0.1:18001, and run `lbctl picker --server URL` on each other "
        "machine with Envoys.",
        "warning",
    ),
)
SECURITY = (
    code_page(
        "LB501",
        "a private key in the file",
        "Fleet files are kept in git, in diffs and in tickets.",
        "Put the key into a separate file and name that; the one that was here is compromised.",
    ),
    code_page(
        "LB502",
        "a path out of the fleet's directory",
        "A path has `..` in it, or a relative one leads out of the directory of the PATH by a link.",
        "Keep the file below that directory, or write its absolute path, without `..`.",
    ),
    code_page(
        "LB514",
        "a file that a fleet may not read",
        "lbctl reads the file with its own rights and passes its content on: to rendered files, proxies, or servers "
        "that the fleet names. Without a limit, the author of a fleet could read any file of the machine. Keys, users, "
        "secrets of headers, own lines and kubeconfigs must be below the fleet's directory, or below a directory that "
        "the operator allows. No fleet may name a file of the control plane's state, or its tokens.",
        "Move the file below the fleet's directory, or below /etc/lbctl, /run/secrets, /run/credentials, /etc/ssl, "
        "/etc/letsencrypt, /etc/haproxy, /etc/nginx, /etc/envoy or ~/.kube. For other places, set LBCTL_FILE_DIRS to "
        "their directories, separated by colons, where lbctl runs.",
    ),
    code_page(
        "LB515",
        "an admin interface beyond loopback",
        "`proxies.*.admin` can be reached from other machines. Envoy's admin interface asks for no credentials: its "
        "clients read the whole configuration with keys of replicas and matched headers, change log levels, drain "
        "listeners and stop the proxy.",
        "Use 127.0.0.1, or `unix:/run/envoy/admin.sock`, which only its owner may connect to. Prometheus reads "
        "`proxies.*.metrics`, which has the figures alone.",
    ),
    code_page(
        "LB516",
        "a socket or log file that only an unsigned stored fleet names",
        "The fleet of a shared store names a Unix socket or an access log that is not in the files of this member. "
        "Without signatures, other clients of the store may have written it, and proxies open it with their rights. "
        "The fleet before stays in force.",
        "Give the members a `control.store.key_file`, or name the socket or the log in the files of each member.",
    ),
    code_page(
        "LB503",
        "a key file that authenticates no request",
        "It cannot be read, or holds no key: the route is rendered closed.",
        "Put the file where the proxy is rendered.",
        "warning",
    ),
    code_page("LB504", "user or password in a URL", "They would appear in logs.", "An address without them."),
    code_page(
        "LB505", "half a client certificate", "A certificate needs its key, and the key its certificate.", "Name both."
    ),
    code_page(
        "LB506",
        "a limit by tenant where none is known",
        "The route has no auth, or its tokens name no tenant.",
        "Add `auth`, or `jwt.tenant_claim`.",
    ),
    code_page(
        "LB507",
        "a line that is no key",
        'A file of API keys holds "key: tenant" or "sha256:<hex>: tenant", with or without quotes.',
        "Correct the line; its text is never shown.",
    ),
    code_page(
        "LB508",
        "a file that is no JWKS",
        "A JSON object with a list of public keys is needed.",
        "Fetch it from the issuer; private and symmetric keys are refused.",
    ),
    code_page(
        "LB509",
        "rates of tenants without a rate by tenant",
        "`rate_limit.*.tenants` gives single tenants another rate; the limit itself is not by tenant, or has no rate.",
        "Write `{by: tenant, rate: 5/s, tenants: {gold: 50/s}}`.",
    ),
    code_page(
        "LB510",
        "serve would hand out the fleet",
        "xDS beyond loopback without client certificates.",
        "Give control.xds.tls a certificate, a key and a client_ca, or say --insecure.",
    ),
    code_page(
        "LB511",
        "serve would allow everybody to move traffic",
        "The API beyond loopback without TLS and token.",
        "Give control.api a tls and a token_file.",
    ),
    code_page(
        "LB512",
        "the traffic log would take counts from everybody",
        "The syslog port of the traffic log beyond loopback: it has no authentication, and rollouts follow its counts.",
        "Bind control.logs to 127.0.0.1.",
    ),
    code_page(
        "LB513",
        "the picker would take prompts from everybody",
        "`control.picker.bind` beyond loopback without client certificates. `serve` goes on without its picker, and "
        "the proxies choose by `otherwise`.",
        "Give control.xds.tls a certificate, a key and a client_ca, bind it to 127.0.0.1, or say --insecure.",
    ),
    code_page(
        "LB527",
        "a node is sent no secrets over open TCP",
        "What the node is to get holds API keys, private keys or other credentials, and it connects by TCP without "
        "client certificates, as any user of the machine can. It is sent nothing: without them routes would be open.",
        "Connect by the Unix socket that `lbctl status` shows (a bootstrap written by the same user while `serve` "
        "runs does), or by mTLS: `control.xds.tls` with a `client_ca`. `serve --insecure` sends it anyway.",
    ),
    code_page(
        "LB528",
        "no Unix socket for xDS",
        "`serve` cannot listen on `xds.sock` in its state directory: proxies of this machine have the TCP port alone.",
        "The message says why: a path of a socket has at most 107 bytes.",
        "warning",
    ),
)
KEY_FILES = (
    code_page(
        "LB121",
        "key and tenant are swapped",
        "In a line of a key file the tenant looks like a key, and the key like a name: whoever guesses the name would "
        "be authenticated, the real key would not, and it would appear in access logs as the tenant.",
        'Write "key: tenant". A key that was served so has been logged: make another, as `lbctl key new` does.',
    ),
    code_page(
        "LB530",
        "a key file that cannot be used any more",
        "It was good, and is now missing, unreadable or has errors: `lbctl serve` goes on with the keys that it held.",
        "Put the file back. An empty file and `lbctl reload --allow-shrink` revoke all its keys.",
    ),
    code_page(
        "LB531",
        "a key file that loses too many keys at once",
        "It holds no key any more, or has lost more of them than `control.max_shrink` allows: it may have been "
        "truncated. `lbctl serve` goes on with the keys that it held. Keys that are replaced by as many others are "
        "a rotation, and taken.",
        "`lbctl reload --allow-shrink`, if it is meant.",
    ),
)
SIGNALS = (
    code_page(
        "LB601",
        "a source that does not say what it is about",
        "`custom` needs a metric and a signal, `prometheus` a query and a signal.",
        "The message shows one that is whole.",
    ),
    code_page(
        "LB602",
        "a unit that this signal cannot have",
        "As seconds for a queue.",
        "The units: requests, ratio, percent, bytes (KiB, MB …), celsius, seconds (milliseconds …), tokens/s.",
    ),
    code_page(
        "LB603",
        "adaptive weights without evidence",
        "No source of the pool reports how fast a replica is at its present batch: its weights stay on the capacities.",
        "Add a source of the engine, as `kind: vllm`.",
        "warning",
    ),
)
ROLLOUTS = (
    code_page(
        "LB701",
        "a rollout to a pool outside the split",
        "Its `to` has no share that could grow.",
        "Name a pool of the split, with a weight of 0 if it is to begin there.",
    ),
    code_page(
        "LB705",
        "a metric of an analysis that cannot compare two pools",
        "Its query has no `{pool}`, so that both values are the same; or its source is a replica's address; or its "
        "name is taken.",
        "Write one server as `source`, and `{pool}` where the query names the pool.",
    ),
)
CODE_PAGES: tuple[CodePage, ...] = (
    *READING, *REFERENCES, *WEIGHTS, *TIMES, *SECURITY, *KEY_FILES, *SIGNALS, *ROLLOUTS, *RUNNING,
)  # fmt: skip
