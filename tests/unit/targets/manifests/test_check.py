from __future__ import annotations

import pytest

from lbctl.targets.manifests.check import complaints, unreachable
from lbctl.targets.target import Bundle, Complaint, File

TEXT = """\
apiVersion: v1
kind: Service
metadata:
  name: edge
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: edge
"""
BUNDLE = Bundle((File("gateway-api.yaml", TEXT),))


NO_MAPPING = (
    'error: resource mapping not found for name: "edge" namespace: "ml" from "gateway-api.yaml": no matches for kind '
    '"HTTPRoute" in version "gateway.networking.k8s.io/v1"'
)
FORBIDDEN = (
    'Error from server (Forbidden): httproutes.gateway.networking.k8s.io "edge" is forbidden: User "ci" cannot patch '
    'resource "httproutes" in API group "gateway.networking.k8s.io" in the namespace "ml"'
)
NO_NAMESPACE = 'Error from server (NotFound): namespaces "ml" not found'


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ('The HTTPRoute "edge" is invalid: spec.rules: Too many: 17', [(None, 9)]),
        (
            'The HTTPRoute "edge" is invalid: \n* spec.a: Required value\n* spec.b: Invalid value: 1\n',
            [
                ('The HTTPRoute "edge" is invalid: spec.a: Required value', 9),
                ('The HTTPRoute "edge" is invalid: spec.b: Invalid value: 1', 9),
            ],
        ),
        (NO_MAPPING, [(None, 9)]),
        ("Error from server (Forbidden): the server does not allow this", [(None, None)]),
        (f"{FORBIDDEN}\n", [(FORBIDDEN, 9)]),
        (f"{NO_NAMESPACE}\n" * 2, [(NO_NAMESPACE, None)]),
        ('Error from server (Invalid): HTTPRoute.gateway.networking.k8s.io "edge" is invalid: spec', [(None, 9)]),
        ("service/edge serverside-applied (server dry run)", []),
    ],
)
def test_each_error_has_the_line_of_its_object(output: str, found: list[tuple[str | None, int | None]]) -> None:
    assert list(complaints(output, BUNDLE)) == [
        Complaint(message or output, "gateway-api.yaml", line) for message, line in found
    ]


CONFLICT = """\
Apply failed with 4 conflicts: conflicts with "kubectl":
- .spec.hostnames
conflicts with "other" using gateway.networking.k8s.io/v1:
- .spec.hostnames
- .spec.rules
Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts
"""


def test_conflict_is_one_error_without_advice() -> None:
    single = (
        'error: Apply failed with 1 conflict: conflict with "other": .spec.rules\nPlease review the fields above--\n* x'
    )
    invalid = 'The HTTPRoute "edge" is invalid: \n* spec.a: Required value\n'
    fix = "(to take over these fields, apply once with `--force-conflicts`)"
    assert [item.message for item in complaints(f"{CONFLICT}{single}\n{invalid}", BUNDLE)] == [
        (
            'Apply failed with 4 conflicts: conflicts with "kubectl": .spec.hostnames, conflicts with "other" using '
            f"gateway.networking.k8s.io/v1: .spec.hostnames, .spec.rules {fix}"
        ),
        f'Apply failed with 1 conflict: conflict with "other": .spec.rules {fix}',
        'The HTTPRoute "edge" is invalid: spec.a: Required value',
    ]


NO_SCHEMAS = (
    'error: error validating "x.yaml": error validating data: failed to download openapi: Get '
    '"https://10.0.0.1:6443/openapi/v2?timeout=32s": dial tcp 10.0.0.1:6443: connect: connection refused'
)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("The connection to the server localhost:8080 was refused", None),
        ("Unable to connect to the server: dial tcp: lookup x: no such host", None),
        (
            (
                'E1130 02:32:52.811423   12262 memcache.go:265] "Unhandled Error"\n'
                f"{NO_SCHEMAS}; if you choose to ignore these errors, turn validation off with --validate=false\n"
            ),
            NO_SCHEMAS,
        ),
        ("error: You must be logged in to the server (Unauthorized)", None),
        ("Please enter Username: error: EOF", None),
        ("Error in configuration: context was not found for specified context: d", None),
        ('The Service "edge" is invalid: spec.x: Invalid value: 1', ""),
        ('Error from server (InternalError): failed calling webhook "x": dial tcp 10.0.0.1:443: refused', ""),
    ],
)
def test_missing_server_is_recognised(output: str, reason: str | None) -> None:
    assert unreachable(output) == (output if reason is None else reason)
