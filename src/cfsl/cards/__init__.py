"""Result cards: what was run and what came out, as files."""
