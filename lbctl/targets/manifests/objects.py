"""Kubernetes objects as trees, and the files that contain them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lbctl.base.diagnostics import Path
from lbctl.targets.manifests.names import NameGrammar, names
from lbctl.targets.target import File
from lbctl.targets.yaml_text import Writer

Tree = dict[str, object]
_LABEL = NameGrammar("label", 63)
_ORDER = (
    "Service",
    "EndpointSlice",
    "Backend",
    "ConfigMap",
    "InferencePool",
    "BackendTLSPolicy",
    "ReferenceGrant",
    "ServiceEntry",
    "DestinationRule",
    "AuthorizationPolicy",
    "HTTPRouteFilter",
    "ClientTrafficPolicy",
    "SecurityPolicy",
    "BackendTrafficPolicy",
    "EnvoyExtensionPolicy",
    "Gateway",
    "HTTPRoute",
    "VirtualService",
)
"""Kinds of objects in file order, which is also the order in which they are applied.

Routes come after their Services and after the policies that protect them.
"""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of one proxy. Labels on these objects contain the proxy's name."""

    proxy: str
    namespace: str
    trees: list[Tree] = field(default_factory=list)
    sources: dict[int, Path] = field(default_factory=dict)
    """Maps the `id` of each dictionary in a tree to the path of the YAML value that it is derived from."""

    def add(
        self,
        api_version: str,
        kind: str,
        name: str,
        component: str,
        source: Path,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        **content: object,
    ) -> None:
        """Add an object.

        `component` (listener, route or pool) is the part of the fleet that the object is derived from.
        """
        all_labels = {
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/instance": _label(self.proxy),
            "app.kubernetes.io/managed-by": "lbctl",
            "app.kubernetes.io/name": "lbctl",
            **(labels or {}),
        }
        tree: Tree = {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": namespace or self.namespace,
                "labels": dict(sorted(all_labels.items())),
            },
            **content,
        }
        self.trees.append(tree)
        self.sources[id(tree)] = source

    def own(self, source: Path, *trees: Tree) -> None:
        """Record the YAML value that parts of objects are derived from."""
        self.sources.update(dict.fromkeys(map(id, trees), source))

    def names(self) -> Iterator[tuple[str, str, str]]:
        """Yield (kind, namespace, name) of each object."""
        for tree in self.trees:
            metadata = tree["metadata"]
            assert isinstance(metadata, dict)
            yield str(tree["kind"]), metadata["namespace"], metadata["name"]

    def files(self, name: str) -> tuple[File, ...]:
        """Return the objects as one stream, and the kustomization that contains it."""
        lines: list[str] = []
        owners: dict[int, Path] = {}
        for tree in sorted(self.trees, key=_order):
            text, own = Writer(self.sources, block=True).write(tree)
            lines += ["---"] * bool(lines)
            owners |= {len(lines) + line: path for line, path in own.items()}
            lines += text.splitlines()
        return File(name, "".join(f"{line}\n" for line in lines), owners), _kustomization([name])


def _order(tree: Tree) -> tuple[int, str, str]:
    metadata = tree["metadata"]
    assert isinstance(metadata, dict)
    return _ORDER.index(str(tree["kind"])), metadata["namespace"], metadata["name"]


def _kustomization(resources: Sequence[str]) -> File:
    tree = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
    }
    return File("kustomization.yaml", Writer({}, block=True).write(tree)[0], optional=True)


def _label(name: str) -> str:
    """Return the name as a label value, which must end with a letter or a digit.

    Names in the fleet are short enough.
    """
    return name if name[-1].isalnum() else names(_LABEL, [(name,)])[name,]
