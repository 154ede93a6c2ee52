"""MAML++ and its relatives, and what they share."""
