"""Shared by tools: inputs, statistics, tolerances, costs of operators, protobuf messages."""
