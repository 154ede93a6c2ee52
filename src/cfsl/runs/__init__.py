"""Runs: what is to be run, as frozen checked values, and how a run becomes a card."""
