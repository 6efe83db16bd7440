"""The transport between organisations: NATS for signed envelopes, TLS connections of its own for weights."""
