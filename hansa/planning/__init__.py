"""`hansa plan`: how long a round takes with many silos, from constants that were measured on this machine."""
