"""Reports: records that print as tables and JSON."""
