"""The public Python API: what `import hansa` gives. `hansa/__init__.py` lists its names."""
