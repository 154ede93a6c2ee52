"""Metrics: pure functions of a Trace."""
