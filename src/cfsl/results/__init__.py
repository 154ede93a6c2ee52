"""Results: what was run and what came out, as files."""
