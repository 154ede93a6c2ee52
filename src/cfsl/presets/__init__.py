"""Presets: the rows and columns of the papers' tables and figures, as functions that return what is to be run."""
