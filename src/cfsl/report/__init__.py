"""Reporting: tasks and results -> pictures, tables and pages."""
