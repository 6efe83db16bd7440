"""Federations between organisations: startup kits, the coordinator, the silo's agent."""
