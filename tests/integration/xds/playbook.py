"""A scripted client: it sends the requests of a test, and decodes responses with Envoy's own messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envoy.service.discovery.v3 import discovery_pb2 as xds

from lbctl.xds.protocol.stream import Acked, Nacked, Stream, TypeStatus
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, Resource, Resources

KINDS = {"cds": CDS, "eds": EDS, "lds": LDS, "rds": RDS, "sds": SDS}
NAMES = {kind: short for short, kind in KINDS.items()}

Content = Mapping[str, str]


class ResourceFactory:
    """Builds resources such as `resources(cds="a1 b1", eds="a1 b1")`: letters are the name, digits the content.
    Equal content is the same object, as in the server."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, str], Resource] = {}

    def __call__(self, **kinds: str) -> Resources:
        return Resources({KINDS[short]: self._named(KINDS[short], words) for short, words in kinds.items()})

    def _named(self, kind: str, words: str) -> dict[str, Resource]:
        return {word.rstrip("0123456789"): self._resource(kind, word) for word in words.split()}

    def _resource(self, kind: str, word: str) -> Resource:
        return self._cache.setdefault((kind, word), Resource(kind, word.rstrip("0123456789"), word.encode()))


resources = ResourceFactory()


class Response:
    """A decoded response. `words` lists resources and removals, for example `a1 b2 -c`."""

    def __init__(self, data: bytes, *, delta: bool) -> None:
        message = (xds.DeltaDiscoveryResponse if delta else xds.DiscoveryResponse).FromString(data)
        self.type_url: str = message.type_url
        self.nonce: str = message.nonce
        self.version: str = message.system_version_info if delta else message.version_info
        held = [each.resource for each in message.resources] if delta else list(message.resources)
        self.bodies = [each.value.decode(errors="replace") for each in held]
        self.inner_types = {each.type_url for each in held}
        self.versions = {each.name: each.version for each in message.resources} if delta else {}
        self.removed = list(message.removed_resources) if delta else []

    @property
    def short(self) -> str:
        return NAMES[self.type_url]

    @property
    def words(self) -> str:
        return " ".join([*self.bodies, *(f"-{name}" for name in self.removed)])

    def __repr__(self) -> str:
        return f"{self.short}: {self.words}"


class Client:
    """A client of either variant. `pull` returns the responses of the server."""

    def __init__(self, content: Resources | None = None, *, delta: bool = False, **options: object) -> None:
        self.delta = delta
        self.stream = Stream(delta=delta, **options)  # type: ignore[arg-type]
        self.now = 0.0
        self.last: dict[str, Response] = {}
        self.accepted: dict[str, str] = {}  # version_info that a client of the state of the world repeats
        self.names: dict[str, list[str]] = {}
        self._known = False
        if content:
            self.stream.offer(content)

    # ── requests

    def send(self, short: str, **fields: object) -> list[Acked | Nacked]:
        message = (xds.DeltaDiscoveryRequest if self.delta else xds.DiscoveryRequest)(type_url=KINDS.get(short, short))
        error = fields.pop("error", None)
        for name, value in fields.items():
            field = getattr(message, name)
            if isinstance(value, str):
                setattr(message, name, value)
            elif isinstance(value, Mapping):
                field.update(value)
            else:
                field.extend(value)
        if error is not None:
            message.error_detail.message = error
            message.error_detail.code = 13
        if not self._known:
            message.node.id = "node"
            self._known = True
        return self.stream.request(message.SerializeToString(), self.now)

    def ask(self, short: str, *names: str, version: str = "", nonce: str | None = None) -> None:
        """Send a state-of-the-world request: the whole list of names, by default with the last nonce."""
        self.names[short] = list(names)
        seen = self.last.get(short)
        nonce_sent = (seen.nonce if seen else "") if nonce is None else nonce
        self.send(
            short, resource_names=names, version_info=version or self.accepted.get(short, ""), response_nonce=nonce_sent
        )

    def change(
        self, short: str, *add: str, drop: Iterable[str] = (), have: Mapping[str, str] | None = None, nonce: str = ""
    ) -> None:
        """Send a delta request with added and dropped names."""
        self.send(
            short,
            resource_names_subscribe=add,
            resource_names_unsubscribe=list(drop),
            initial_resource_versions=have or {},
            response_nonce=nonce,
        )

    def subscribe(self, short: str, *names: str) -> None:
        """Send the first request of a type, in either variant."""
        if self.delta:
            self.change(short, *names)
        else:
            self.ask(short, *names)

    def ack(self, got: Response) -> list[Acked | Nacked]:
        if self.delta:
            return self.send(got.short, response_nonce=got.nonce)
        self.accepted[got.short] = got.version
        names = self.names[got.short]
        return self.send(got.short, resource_names=names, version_info=got.version, response_nonce=got.nonce)

    def nack(self, got: Response, words: str = "no", *, names: Iterable[str] | None = None) -> list[Acked | Nacked]:
        if self.delta:
            return self.send(got.short, response_nonce=got.nonce, error=words)
        if names is not None:
            self.names[got.short] = list(names)
        return self.send(
            got.short,
            resource_names=self.names[got.short],
            version_info=self.accepted.get(got.short, ""),
            response_nonce=got.nonce,
            error=words,
        )

    # ── responses

    def offer(self, content: Resources) -> None:
        self.stream.offer(content)

    def pull(self) -> list[Response]:
        """Return all responses that may be sent now."""
        responses = []
        while response := self.stream.respond(self.now):
            got = Response(response.encode(), delta=self.delta)
            self.last[got.short] = got
            responses.append(got)
        return responses

    def accept_all(self) -> list[str]:
        """Acknowledge responses until there are no more, and return them as `cds: a1 b1`."""
        nonce_sent = []
        while responses := self.pull():
            nonce_sent += [str(got) for got in responses]
            for got in responses:
                self.ack(got)
        return nonce_sent

    def pull_one(self) -> Response:
        (got,) = self.pull()
        return got

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def status(self, short: str) -> TypeStatus:
        (status,) = (each for each in self.stream.status() if each.type_url == KINDS[short])
        return status

    def state(self, short: str) -> str:
        return self.status(short).state


def started(content: Resources, *, delta: bool = False, **options: object) -> Client:
    """Return a client that has received all content in the order of Envoy."""
    client = Client(content, delta=delta, **options)
    for short in ("cds", "eds", "lds", "rds", "sds"):
        names = [] if short in ("cds", "lds") else list(content.of(KINDS[short]))
        if names or short in ("cds", "lds"):
            client.subscribe(short, *names)
            client.accept_all()
    return client
