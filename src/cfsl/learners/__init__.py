"""Learners: one a file."""
