"""Federated learning when labels are scarce."""

__version__ = "0.1.0"
