"""Experiments that use the package as a whole: the demonstration, and the reproduction of papers."""
