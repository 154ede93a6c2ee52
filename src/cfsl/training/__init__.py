"""Training: the outer loop, its schedule, validation and checkpoints."""
