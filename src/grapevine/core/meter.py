"""The count of floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Meter:
    """Floating-point operations: all, those of them in backward passes, and those outside of networks."""

    flops: int = 0
    backward: int = 0
    outside: int = 0

    def add(self, flops: int) -> None:
        """What a step computes outside of a network, as 2 · multiply-adds."""
        self.flops += flops
        self.outside += flops
