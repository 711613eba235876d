"""The protocols: key agreement, keyed streams, masked sums, and secure Hamming distances."""
