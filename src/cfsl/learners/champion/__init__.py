"""The champion, and the parts it is made of."""
