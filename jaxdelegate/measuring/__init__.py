"""Shared by tools: inputs, statistics, tolerances, protobuf messages."""
