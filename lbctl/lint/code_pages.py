"""The pages of codes that are not lint rules: what each code means, and what to do.

`pages` combines them with the rules.

A code is never reused for something else; one that lbctl no longer emits keeps its page here.
"""

from __future__ import annotations

from lbctl.lint.code_pages_reading import READING, REFERENCES, code_page
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
        "Capacities whose ratios fit, or a pool of its own for the smallest.",
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
        "`algorithm: hash` needs `hash.key`, and the reverse.",
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
        "Envoys ask `control.picker.bind`, HAProxy and nginx the port after it.",
        "As 127.0.0.1:18001.",
    ),
    code_page(
        "LB308",
        "an Envoy of files cannot ask the picker there",
        "`control.picker.bind` is beyond loopback, where the picker wants client certificates by `control.xds.tls`. An "
        "Envoy that gets everything from `lbctl serve` has one in its bootstrap; the files of `lbctl render` name "
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
        "Put the key into a file of its own and name that; the one that was here is compromised.",
    ),
    code_page(
        "LB502",
        "a path out of the fleet's directory",
        "A relative path leads above the directory of the PATH.",
        "Keep the file below it, or give an absolute path.",
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
RUNNING = (
    code_page(
        "LB901",
        "the proxy refuses what lbctl rendered",
        "Its own checker says no: an error in lbctl, or a version of the "
        "proxy that differs from the one that is named.",
        "Name the version; else report it with the line.",
    ),
    code_page(
        "LB902",
        "the proxy's checker warns",
        "It accepts the configuration and has something to say of it.",
        "Read it; it is shown at the line of the YAML that it came from.",
        "warning",
    ),
    code_page(
        "LB920",
        "an invalid resource",
        "lbctl's own check of what Envoy would refuse has stopped it: the last good one is still served.",
        "Report it: it is an error in lbctl.",
    ),
    code_page(
        "LB921",
        "an Envoy refuses a resource",
        "The NACK with its message and the line of the YAML; it is not sent again.",
        "Correct that line, or the version of the Envoy.",
    ),
    code_page("LB922", "a resource that cannot be read", "What was built is no message of its type.", "Report it."),
    code_page(
        "LB930",
        "too much would go at once",
        "More of a pool or of the fleet would vanish than `control.max_shrink` allows: what was good keeps serving.",
        "`lbctl reload --allow-shrink`, if it is meant.",
    ),
    code_page(
        "LB931",
        "a certificate or key that cannot be used",
        "It cannot be read, has expired, or the pair does not fit: the last good pair is still served.",
        "Renew both files together.",
    ),
    code_page(
        "LB932",
        "a state that cannot be used",
        "The file of the control plane's state is damaged or of another version.",
        "Restore it, or begin with an empty directory.",
    ),
    code_page(
        "LB933",
        "an invalid answer of discovery",
        "A source of replicas names one that no fleet file could: the pool's last answer keeps serving.",
        "Correct what the source says; the message names the replica and the key.",
    ),
    code_page(
        "LB960",
        "a server that init cannot identify",
        "`lbctl init --from` asked it, and it did not answer within five seconds, or not as a model server does.",
        "The message says which; give scheme, host and port of the port that answers inference, or of a GPU exporter.",
    ),
    code_page(
        "LB961",
        "a file that init does not write",
        "There is one of that name already, or its directory cannot be written.",
        "Another name; or standard output, to compare the two.",
    ),
    code_page(
        "LB962",
        "a URL that init does not ask",
        "It is no http or https URL, holds more than scheme, host and port, or its address is one that no replica has.",
        "As http://gpu1:8000; a user or password is never sent, and never shown.",
    ),
    code_page(
        "LB963",
        "answers that make no valid fleet",
        "What the servers said, written as a fleet, has a finding of `lint` that init cannot resolve.",
        "The message names it; write the fleet by hand from what `lbctl init` gives without --from.",
    ),
    code_page(
        "LB970",
        "a fleet that up does not run",
        "`lbctl up` adds a proxy of its own to the fleet, as `proxies.up`. The fleet needs a listener, and no proxy "
        "that `serve` would drive besides (a HAProxy or nginx with `config`); Envoys by xDS may be there. Where no "
        "route has `auth`, it adds its own check of keys, which is not possible beside a section `defaults`.",
        "The message says which it is; `lbctl serve` drives the proxies that a fleet names.",
    ),
    code_page(
        "LB971",
        "routes that a proxy would never choose",
        "The fleet finds routes by the model, which clients name in the body, and this proxy reads no body.",
        "Envoy or HAProxy; or clients that send the header x-model.",
    ),
    code_page(
        "LB972",
        "an address that is in use",
        "A program listens already where `lbctl up` would start the proxy or the API.",
        "The message names the program: end it, or give the fleet another address.",
    ),
    code_page(
        "LB980",
        "a configuration that cannot be imported",
        "`lbctl import` cannot read it as its proxy would: a syntax error, or a file above the limits.",
        "The message names the place; the proxy's own checker says more.",
    ),
    code_page(
        "LB982",
        "a configuration without anything to import",
        "It sends no HTTP requests anywhere, or nothing of it could be said by a fleet.",
        "Give the main file with its includes beside it.",
    ),
    code_page(
        "LB983",
        "an include that was not read",
        "It is missing, includes itself, or leads out of the directory of the main file.",
        "Copy it below that directory and import again; what it holds is not in the fleet.",
        "warning",
    ),
    code_page(
        "LB984",
        "a secret that was not copied",
        "The configuration holds a key or a password. A fleet names the file that holds it, and never the secret.",
        "Put it into a file of mode 0600; `lbctl key new` makes keys whose hashes alone are kept.",
        "warning",
    ),
    code_page(
        "LB985",
        "a setting that harms inference, or a value that is left out",
        "The imported configuration has it, or has the proxy's default where nothing is written; or it has a value "
        "that no key of the fleet takes.",
        "The message says what the fleet does instead.",
        "warning",
    ),
    code_page(
        "LB986",
        "a request that the fleet treats otherwise",
        "`lbctl import --compare` sent it through the configuration and through the fleet, and the answers differ.",
        "The table says in what; change the fleet, or accept the difference.",
    ),
    code_page(
        "LB987",
        "a comparison that could not be made",
        "One of the two proxies did not start on loopback.",
        "The message has its own words.",
    ),
    code_page(
        "LB988",
        "routes that an import closed",
        "lbctl does not know where they lead, how they are protected, or what they answer. They answer 501, since "
        "another route would take their requests otherwise.",
        "The comment at each route has its lines and the reason: write the route by hand, or leave it out.",
        "warning",
    ),
    code_page(
        "LB999",
        "lbctl itself failed",
        "A fleet brought an error in lbctl to light; what was good keeps serving.",
        "Report it with the fleet, if it may be shown.",
    ),
)
CODE_PAGES: tuple[CodePage, ...] = (
    *READING, *REFERENCES, *WEIGHTS, *TIMES, *SECURITY, *KEY_FILES, *SIGNALS, *ROLLOUTS, *RUNNING,
)  # fmt: skip
