"""Links to silos on this machine or on a Ray cluster. The network link is in `hansa.deploy.network`."""
