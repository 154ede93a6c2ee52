"""The champion, and the parts that it consists of."""
