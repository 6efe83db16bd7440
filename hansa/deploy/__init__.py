"""Federations between organisations: startup kits, the coordinator, regions and the agents of silos."""
