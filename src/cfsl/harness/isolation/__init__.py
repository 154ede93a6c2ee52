"""Every call of a learner in a process of its own."""
