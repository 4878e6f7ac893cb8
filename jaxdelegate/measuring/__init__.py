"""What tools share to measure and to compare: inputs, statistics, tolerances, costs, protos."""
