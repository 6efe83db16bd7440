"""Bonawitz et al. (2017), Practical Secure Aggregation for Privacy-Preserving Machine Learning, Figure 4.

    y_u = x_u + G(b_u) + Σ_{v>u} G(s_uv) − Σ_{v<u} G(s_uv)   (mod 2³²)          what leaves silo u
    Σ_{u∈U} x_u = Σ_{u∈U} (y_u − G(b_u)) − Σ_{u∈U, v∉U} ±G(s_uv)                what the server can compute

x_u: the silo's numbers in fixed point; s_uv: a secret that silos u and v agree on through the server, which does not
learn it (X25519); b_u: the seed of the silo's self-mask; G: a stream of pseudorandom numbers from a secret (AES in
counter mode); U: the silos that answered. Every other silo holds one share of b_u and one of the key behind s_uv; any
``threshold`` shares reconstruct the secret (Shamir): b_u of a silo that answered, the key of a silo that dropped out.
A silo never reveals both for the same silo.

    1 advertise   each silo makes two key pairs and announces the public keys
    2 share       each silo splits its secrets into shares, each encrypted for its receiver
    3 mask        each silo adds its masks to its update; a silo that sends none has dropped out
    4 reveal      the silos reveal the shares that remove the masks which do not cancel, and no others

Fixed point: round(x·2³⁰/bound) of values within ±bound, weights that sum to at most one; so a sum of n differs from the
plain one by at most n·bound·2⁻³¹ per number, and never overflows.
Deviations: instead of signing the list of survivors, a silo reveals its shares for one list alone. A server that shows
two lists needs ``threshold`` shares for each, so with a threshold above half of the other silos it cannot get both.
Between organisations the announced keys are signed (deploy/signatures.py).
"""

import secrets as system_random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from hansa.core.messages import NodeId

Words = NDArray[np.uint32]  # fixed-point numbers, masked or not
Share = tuple[int, int]  # a point of the polynomial: x, y
PRIME = 2**521 - 1  # the field of the shares: a Mersenne prime above any 32-byte secret
FIXED_POINT_STEPS = 2**30  # from 0 to the bound
SECRET_BYTES = 32
CHUNK = 1 << 16  # numbers of a mask at a time
ZEROS = memoryview(bytes(4 * CHUNK))


class Refused(Exception):
    """A step of the protocol that a silo or the server refuses; the message states the reason."""


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def to_fixed(values: NDArray[np.float32], weight: float, bound: float) -> tuple[Words, int]:
    """Return weight·values in fixed point, and how many values were clipped to ±bound."""
    clipped = int(np.count_nonzero(np.abs(values) > bound))
    scaled = np.clip(values.astype(np.float64), -bound, bound) * (weight * FIXED_POINT_STEPS / bound)
    return np.rint(scaled).astype(np.int32).view(np.uint32), clipped


def from_fixed(total: Words, weight: float, bound: float) -> NDArray[np.float32]:
    """Return the mean, from a sum of fixed-point numbers and the sum of their weights."""
    mean: NDArray[np.float32] = (total.view(np.int32) * (bound / FIXED_POINT_STEPS / weight)).astype(np.float32)
    return mean


def mask_stream(secret: bytes, count: int) -> Words:
    """G: ``count`` pseudorandom numbers from a secret."""
    total = np.zeros(count, np.uint32)
    _add(total, secret, True)
    return total


# ── shares ────────────────────────────────────────────────────────────────────────────────────────────────────────


def split_secret(secret: int, places: Sequence[int], threshold: int) -> list[Share]:
    """Shamir: points of a random polynomial of degree threshold − 1 whose value at 0 is the secret."""
    factors = [secret, *(system_random.randbelow(PRIME) for _ in range(threshold - 1))]
    return [(x, sum(factor * pow(x, i, PRIME) for i, factor in enumerate(factors)) % PRIME) for x in places]


def reconstruct_secret(shares: Sequence[Share]) -> int:
    """The polynomial's value at 0, by Lagrange interpolation."""
    total = 0
    for x, y in shares:
        above = below = 1
        for other, _ in shares:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME


# ── at the silo ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Keys:
    """A silo's public keys in hexadecimal: ``seal`` for encrypting shares, ``mask`` for agreeing on masks."""

    seal: str
    mask: str


@dataclass(frozen=True)
class Secrets:
    """A silo's secrets of a round in hexadecimal: its two private keys and the seed of its self-mask."""

    seal: str
    mask: str
    own: str

    @classmethod
    def fresh(cls) -> "Secrets":
        """Return new secrets from the operating system's random source."""
        return cls(*(system_random.token_hex(SECRET_BYTES) for _ in range(3)))

    @property
    def keys(self) -> Keys:
        """The public keys that belong to the private ones."""
        return Keys(public_key(self.seal), public_key(self.mask))

    as_dict = asdict


def _private(secret: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))


def public_key(secret: str) -> str:
    """The public key of a private one, both in hexadecimal."""
    return _private(secret).public_key().public_bytes_raw().hex()


def agree_key(secret: str, key: str, purpose: str) -> bytes:
    """Return the key that two silos agree on, from one silo's private and the other's public key.

    Raises `Refused` if the public key is malformed.
    """
    try:
        both = _private(secret).exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:
        raise Refused("a public key on the roster is malformed") from None
    return HKDF(hashes.SHA256(), SECRET_BYTES, None, purpose.encode()).derive(both)


def share_index(holder: NodeId, silo: NodeId, roster: Iterable[NodeId]) -> int:
    """The x at which ``holder`` holds its share of the secrets of ``silo``; 0 if both are the same silo."""
    return 1 + sorted(set(roster) - {silo}).index(holder) if holder != silo else 0


def share_secrets(
    me: NodeId, mine: Secrets, roster: Mapping[NodeId, Keys], threshold: int, label: str
) -> dict[NodeId, str]:
    """Return shares of the silo's two secrets for every other silo, each encrypted for its receiver.

    Raises `Refused` if the roster lacks the silo's own keys or has a key twice, or the threshold is out of range.
    """
    if roster.get(me) != mine.keys:
        raise Refused("the roster does not contain this silo's own keys")
    others = sorted(set(roster) - {me})
    if not 2 <= threshold <= len(others):
        raise Refused(
            f"the threshold is {threshold} of {len(others)} other silos; it must be at least 2 and at most their number"
        )
    if len({key for keys in roster.values() for key in (keys.seal, keys.mask)}) < 2 * len(roster):
        raise Refused("the roster contains the same key twice")
    places = [share_index(other, me, roster) for other in others]
    split = [split_secret(int(secret, 16), places, threshold) for secret in (mine.own, mine.mask)]
    sealed = {}
    for other, (x, own), (_, key) in zip(others, *split, strict=True):
        text = f"{x} {own:x} {key:x}".encode()
        cipher = ChaCha20Poly1305(agree_key(mine.seal, roster[other].seal, f"{label} {me} {other}"))
        sealed[other] = cipher.encrypt(bytes(12), text, None).hex()  # the key is used for this one message
    return sealed


def decrypt_shares(me: NodeId, mine: Secrets, sender: NodeId, key: str, sealed: str, label: str) -> tuple[Share, Share]:
    """Return the shares of another silo's self-mask seed and of its mask key.

    Raises `Refused` if they were not encrypted for this silo and this round.
    """
    try:
        cipher = ChaCha20Poly1305(agree_key(mine.seal, key, f"{label} {sender} {me}"))
        x, own, mask = cipher.decrypt(bytes(12), bytes.fromhex(sealed), None).decode().split()
    except (InvalidTag, ValueError):
        raise Refused(
            f"the shares from '{sender}' cannot be decrypted: they are not for this silo and this round"
        ) from None
    return (int(x), int(own, 16)), (int(x), int(mask, 16))


def mask(me: NodeId, mine: Secrets, roster: Mapping[NodeId, Keys], values: Words, label: str) -> Words:
    """y_u: the values under the silo's self-mask and one pairwise mask for every other silo."""
    masked = values.copy()
    _add(masked, bytes.fromhex(mine.own), True)
    for other, keys in roster.items():
        if other != me:
            _add(masked, agree_key(mine.mask, keys.mask, label), me < other)
    return masked


def _add(total: Words, secret: bytes, plus: bool) -> None:
    """Add G of a secret to the numbers, or subtract it; in pieces that stay in the processor's cache."""
    # Each secret is used for one stream only, so the counter may begin at zero.
    cipher = Cipher(algorithms.AES256(secret), modes.CTR(bytes(16))).encryptor()
    change = np.add if plus else np.subtract
    for begin in range(0, len(total), CHUNK):
        part = total[begin : begin + CHUNK]
        change(part, np.frombuffer(cipher.update(ZEROS[: 4 * len(part)]), np.uint32), out=part)


def reveal(
    me: NodeId,
    mine: Secrets,
    roster: Mapping[NodeId, Keys],
    inbox: Mapping[NodeId, str],
    answered: Sequence[NodeId],
    threshold: int,
    label: str,
) -> dict[NodeId, Share]:
    """Return one share for every other silo: of its self-mask seed if it answered, of its mask key if it dropped out.

    ``inbox``: silo → the encrypted shares that it made for this silo. Raises `Refused` if too few silos answered.
    """
    if not set(answered) <= set(roster):
        raise Refused("the list of silos that answered names silos that are not on the roster")
    if len(set(answered)) <= threshold:
        raise Refused(f"only {len(set(answered))} silos answered, and more than {threshold} must be in the sum")
    found = {}
    for sender, sealed in inbox.items():
        if sender not in roster or sender == me:
            raise Refused("it is asked for a share of a silo that it was not masked with")
        own, key = decrypt_shares(me, mine, sender, roster[sender].seal, sealed, label)
        found[sender] = own if sender in answered else key
    return found


# ── at the server ─────────────────────────────────────────────────────────────────────────────────────────────────


def unmask(
    total: Words,
    roster: Mapping[NodeId, Keys],
    answered: Sequence[NodeId],
    shares: Mapping[NodeId, Sequence[Share]],
    threshold: int,
    label: str,
) -> Words:
    """Return the plain sum of the silos that answered, from their masked sum and the revealed shares of every silo.

    Raises `Refused` if the shares do not reconstruct a secret.
    """
    plain = total.copy()
    for silo in roster:
        known = shares.get(silo, ())
        if len({x for x, _ in known}) < threshold:
            raise Refused(f"{len(known)} silos revealed their share of the secret of '{silo}'; {threshold} are needed")
        secret = f"{reconstruct_secret(list(known)[:threshold]) % 2**256:064x}"
        if silo in answered:
            _add(plain, bytes.fromhex(secret), False)
            continue
        if public_key(secret) != roster[silo].mask:
            raise Refused(f"the revealed shares of the key of '{silo}' do not reconstruct it")
        for other in answered:
            _add(plain, agree_key(secret, roster[other].mask, label), silo < other)
    return plain
