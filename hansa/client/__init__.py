"""A silo's side of a federation: what it does when it is asked."""
