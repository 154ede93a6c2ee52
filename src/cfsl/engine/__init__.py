"""The engine: many runs, each done once, in this process, in several, or on a cluster."""
