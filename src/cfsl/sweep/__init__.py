"""Sweeps: a search for hyper-parameters on validation tasks, in a study that can be continued."""
