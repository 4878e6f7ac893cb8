"""Model, entry point, shapes -> Plan: steps, partitions, and why operators stay on the host."""
