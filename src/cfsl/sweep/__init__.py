"""Sweeps: hyper-parameters are searched on validation tasks, trial by trial, in a study that can be stopped."""
