"""The pages of codes about what runs: proxies, their checks, `lbctl serve` and its state."""

from __future__ import annotations

from lbctl.lint.code_pages_reading import code_page

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
        "`lbctl up` adds its own proxy to the fleet, as `proxies.up`. The fleet needs a listener, and no proxy "
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
        "It is missing, includes itself, or leads out of the directory of the main file. It may contain rules about "
        "access: `lbctl import` closes the routes of the location or server around it, or all routes (LB988). Files "
        "such as `mime.types` that contain none, by their names, close nothing.",
        "Copy it below that directory, write that path in the configuration, and import again.",
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
        "One of the two proxies did not start on loopback, the comparison took longer than 60 s, or no request could "
        "be compared.",
        "The message has the proxy's own words. If it took too long, import fewer routes at a time. If nothing was "
        "compared, the table says why for each request.",
    ),
    code_page(
        "LB988",
        "routes that an import closed",
        "lbctl does not know where they lead, how they are protected, or what they answer. They answer 501, since "
        "another route would take their requests otherwise. It is an error if no other route serves.",
        "The comment at each route has its lines, the reason and its pool: write `auth` where a rule protected it, and "
        "put the pool in the place of `respond`; or leave the route out.",
        "warning",
    ),
    code_page(
        "LB989",
        "requests that the imported fleet sends to another pool",
        "A rule of the configuration chooses a backend by a condition of which no match expresses any part. A closed "
        "route in front would reject the requests of all clients; so the next rule serves them, and the import fails. "
        "Or a prefix of the configuration does not end at a segment: `/v1/emb` also takes `/v1/embeddings`, and a "
        "prefix of a fleet does not.",
        "Write a route for these requests in the fleet. If the next rule may serve them, take the rule out of the "
        "configuration and import again.",
    ),
    code_page(
        "LB999",
        "lbctl itself failed",
        "A fleet brought an error in lbctl to light; what was good keeps serving.",
        "Report it with the fleet, if it may be shown.",
    ),
)
