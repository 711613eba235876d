"""Data sets, tables, partitions, label settings."""
