"""Data sets: sources, the packed image store, and plan + store -> tensors."""
