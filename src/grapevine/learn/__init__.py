"""Learning on one client and averaging on the server: one training loop, losses, pseudo-labels, networks, normalisation."""

from grapevine.learn.training import Weights, add, average, clip, fit, parameter_names, passes, pull, push, subtract, train

__all__ = ["Weights", "add", "average", "clip", "fit", "parameter_names", "passes", "pull", "push", "subtract", "train"]
