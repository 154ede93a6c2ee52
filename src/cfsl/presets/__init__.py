"""Presets: functions that return the runs of the papers' tables and figures."""
