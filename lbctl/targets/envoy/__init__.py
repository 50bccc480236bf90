"""Envoy 1.40 as a target: one bootstrap file, or the same messages over xDS."""

from lbctl.targets.envoy.target import EnvoyTarget
from lbctl.targets.target import Target

TARGET: Target = EnvoyTarget()
