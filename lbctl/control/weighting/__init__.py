"""The strategies that `weighting.strategy` can name. This package's `strategy` module defines their interface.

To add a strategy, add a module with its function and an entry here.
"""

from __future__ import annotations

from lbctl.base.registry import Registry
from lbctl.control.weighting.adaptive import adaptive
from lbctl.control.weighting.composite import composite
from lbctl.control.weighting.static import static
from lbctl.control.weighting.strategy import Strategy

STRATEGIES: Registry[Strategy] = Registry({"static": static, "adaptive": adaptive, "composite": composite})
