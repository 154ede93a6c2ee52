"""Metrics: pure functions of a Trace, or of what was kept of it."""
