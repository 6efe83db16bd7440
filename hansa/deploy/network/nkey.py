"""A member's key as NATS writes it: brokers authenticate members by their signature of a random number.

The member's own Ed25519 key signs, so there are no passwords, and authentication does not depend on who ends TLS.
"""

from base64 import b32encode, urlsafe_b64encode
from binascii import crc_hqx

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

USER = 20 << 3  # NATS's first byte of a user's public key: the text begins with U


def nkey(public: bytes) -> str:
    """The NATS form of a raw Ed25519 public key."""
    data = bytes([USER]) + public
    return b32encode(data + crc_hqx(data, 0).to_bytes(2, "little")).decode().rstrip("=")


def answer(key: Ed25519PrivateKey, challenge: str) -> dict[str, str]:
    """The fields of CONNECT that answer a server's challenge (``nonce`` of INFO)."""
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    signature = urlsafe_b64encode(key.sign(challenge.encode())).decode().rstrip("=")
    return {"nkey": nkey(public), "sig": signature}
