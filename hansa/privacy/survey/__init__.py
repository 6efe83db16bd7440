"""Agreement of the silos of a survey on a key that the coordinator does not know."""
