"""Learning on one client and averaging on the server: one training loop, losses, pseudo-labels, networks, normalisation."""

from grapevine.learn.training import Weights, add, average, check_finite, fit, parameter_names, pull, push, subtract
from grapevine.learn.training import require_finite as require_finite

__all__ = ["Weights", "add", "average", "check_finite", "fit", "parameter_names", "pull", "push", "subtract"]
