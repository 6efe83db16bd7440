"""Privacy: what a release costs (accounting), what it gives away (attacks), what holds it back and at which price."""
