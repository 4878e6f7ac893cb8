"""Reports: records that print as tables, JSON, and figures."""
