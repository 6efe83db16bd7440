"""Bonawitz et al. (2017), Practical Secure Aggregation for Privacy-Preserving Machine Learning, Figure 4.

    y_u = x_u + G(b_u) + Σ_{v>u} G(s_uv) − Σ_{v<u} G(s_uv)   (mod 2³²)          what leaves silo u
    Σ_{u∈U} x_u = Σ_{u∈U} (y_u − G(b_u)) − Σ_{u∈U, v∉U} ±G(s_uv)                what the server can compute

x_u: the silo's numbers in fixed point; s_uv: a secret that u and v agree on through the server, which does not learn
it (X25519); b_u: the silo's own; G: a stream of numbers from a secret (AES in counter mode); U: who answered. Of b_u
and of the key behind s_uv every other silo holds a share, and any ``threshold`` of them restore it (Shamir): b_u of a
silo that answered, the key of one that did not. Never both: a silo asked for both refuses.

    1 advertise   every silo makes two key pairs
    2 share       it deals out shares of its secrets, each sealed for its receiver
    3 mask        it adds its masks; whoever is silent from here on has dropped out
    4 reveal      silos give the shares that undo what does not cancel, and only those

Fixed point: round(x·2³⁰/bound) of values within ±bound, weights that sum to at most one; so a sum of n differs from the
plain one by at most n·bound·2⁻³¹ per number, and never overflows.
Deviations: instead of signing the list of survivors, a silo opens its shares for one list alone. A server that shows
two lists needs ``threshold`` openings for each, so with more than half of the others it cannot have both. Keys are
signed between organisations: see deploy/vouch.py.
"""

import secrets as chance
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

Words = NDArray[np.uint32]
Share = tuple[int, int]  # a point of the polynomial: x, y
PRIME = 2**521 - 1  # the field of the shares: a Mersenne prime above any 32-byte secret
FIXED_POINT_STEPS = 2**30  # fixed point: so many steps from 0 to the bound
SECRET_BYTES = 32  # bytes


class Refused(Exception):
    """What a silo will not do; the sentence says why."""


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def to_fixed(values: NDArray[np.float32], weight: float, bound: float) -> tuple[Words, int]:
    """weight·values in fixed point, and how many of them had to be cut to ±bound."""
    cut = int(np.count_nonzero(np.abs(values) > bound))
    scaled = np.clip(values.astype(np.float64), -bound, bound) * (weight * FIXED_POINT_STEPS / bound)
    return np.rint(scaled).astype(np.int32).view(np.uint32), cut


def from_fixed(total: Words, weight: float, bound: float) -> NDArray[np.float32]:
    """The mean, from the sum of fixed-point numbers and of their weights."""
    mean: NDArray[np.float32] = (total.view(np.int32) * (bound / FIXED_POINT_STEPS / weight)).astype(np.float32)
    return mean


def mask_stream(secret: bytes, count: int) -> Words:
    """G: ``count`` numbers that nobody without the secret can tell from chance."""
    # A secret makes one stream only, so the counter may begin at zero.
    cipher = Cipher(algorithms.AES256(secret), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * count)), np.uint32)


# ── shares ────────────────────────────────────────────────────────────────────────────────────────────────────────


def split_secret(secret: int, places: Sequence[int], threshold: int) -> list[Share]:
    """Shamir: points of a random polynomial of degree threshold − 1 whose value at 0 is the secret."""
    factors = [secret, *(chance.randbelow(PRIME) for _ in range(threshold - 1))]
    return [(x, sum(factor * pow(x, i, PRIME) for i, factor in enumerate(factors)) % PRIME) for x in places]


def reconstruct_secret(shares: Sequence[Share]) -> int:
    """The polynomial's value at 0, by Lagrange."""
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
    """A silo's public keys: one to seal shares with, one to agree on masks with; in hexadecimal."""

    seal: str
    mask: str


@dataclass(frozen=True)
class Secrets:
    """What a silo must not tell, in hexadecimal: its two private keys and the seed of its own mask."""

    seal: str
    mask: str
    own: str

    @classmethod
    def fresh(cls) -> "Secrets":
        return cls(*(chance.token_hex(SECRET_BYTES) for _ in range(3)))

    @property
    def keys(self) -> Keys:
        return Keys(_public(self.seal), _public(self.mask))

    as_dict = asdict


def _private(secret: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))


def _public(secret: str) -> str:
    return _private(secret).public_key().public_bytes_raw().hex()


def agree_key(secret: str, key: str, purpose: str) -> bytes:
    """The same bytes for both sides, whichever secret and whichever public key of the two is at hand."""
    try:
        both = _private(secret).exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:
        raise Refused("a key on the list is no key") from None
    return HKDF(hashes.SHA256(), SECRET_BYTES, None, purpose.encode()).derive(both)


def share_index(holder: NodeId, silo: NodeId, roster: Iterable[NodeId]) -> int:
    """Where on the polynomial of ``silo`` the share of ``holder`` lies."""
    return 1 + sorted(set(roster) - {silo}).index(holder) if holder != silo else 0


def share_secrets(me: NodeId, mine: Secrets, roster: Mapping[NodeId, Keys], threshold: int, label: str) -> dict[NodeId, str]:
    """Shares of the silo's two secrets for every other silo, sealed so that the server can only carry them."""
    if roster.get(me) != mine.keys:
        raise Refused("the list of keys does not have this silo's own")
    others = sorted(set(roster) - {me})
    if not 2 <= threshold <= len(others):
        raise Refused(f"{threshold} of {len(others)} other silos could restore its secrets: at least 2 must be needed")
    if len({key for keys in roster.values() for key in (keys.seal, keys.mask)}) < 2 * len(roster):
        raise Refused("the list of keys has one twice")
    places = [share_index(other, me, roster) for other in others]
    dealt = [split_secret(int(secret, 16), places, threshold) for secret in (mine.own, mine.mask)]
    sealed = {}
    for other, (x, own), (_, key) in zip(others, *dealt, strict=True):
        text = f"{x} {own:x} {key:x}".encode()
        sealing = ChaCha20Poly1305(agree_key(mine.seal, roster[other].seal, f"{label} {me} {other}"))
        sealed[other] = sealing.encrypt(bytes(12), text, None).hex()  # the key is made for this one message
    return sealed


def decrypt_shares(me: NodeId, mine: Secrets, sender: NodeId, key: str, sealed: str, label: str) -> tuple[Share, Share]:
    """The shares of another silo's own seed and of its mask key."""
    try:
        opening = ChaCha20Poly1305(agree_key(mine.seal, key, f"{label} {sender} {me}"))
        x, own, mask = opening.decrypt(bytes(12), bytes.fromhex(sealed), None).decode().split()
    except (InvalidTag, ValueError):
        raise Refused(f"the shares that should come from '{sender}' are not for this silo and this round") from None
    return (int(x), int(own, 16)), (int(x), int(mask, 16))


def mask(me: NodeId, mine: Secrets, roster: Mapping[NodeId, Keys], values: Words, label: str) -> Words:
    """y_u: the values under the silo's own mask and one per other silo."""
    masked = values + mask_stream(bytes.fromhex(mine.own), len(values))
    for other, keys in roster.items():
        if other != me:
            _add(masked, agree_key(mine.mask, keys.mask, label), me < other)
    return masked


def _add(total: Words, secret: bytes, plus: bool) -> None:
    numbers = mask_stream(secret, len(total))
    if plus:
        total += numbers
    else:
        total -= numbers


def reveal(
    me: NodeId,
    mine: Secrets,
    roster: Mapping[NodeId, Keys],
    inbox: Mapping[NodeId, str],
    answered: Sequence[NodeId],
    threshold: int,
    label: str,
) -> dict[NodeId, Share]:
    """For every other silo one share: of its own seed if it answered, of its mask key if it dropped out."""
    if not set(answered) <= set(roster):
        raise Refused("the list of who answered names silos that are not in the round")
    if len(set(answered)) <= threshold:
        raise Refused(f"only {len(set(answered))} silos answered: more than {threshold} must hide in the sum")
    found = {}
    for sender, sealed in inbox.items():
        if sender not in roster or sender == me:
            raise Refused("it is asked for the secret of a silo that it was not masked with")
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
    """The sum of what the silos that answered meant, from the sum of what they sent and the shares revealed of each."""
    plain = total.copy()
    for silo in roster:
        known = shares.get(silo, ())
        if len({x for x, _ in known}) < threshold:
            raise Refused(f"{len(known)} silos gave their share of '{silo}''s secret, {threshold} are needed")
        secret = f"{restore(list(known)[:threshold]) % 2**256:064x}"
        if silo in answered:
            _add(plain, bytes.fromhex(secret), False)
            continue
        if _public(secret) != roster[silo].mask:
            raise Refused(f"the shares of '{silo}''s secret do not fit together")
        for other in answered:
            _add(plain, agree_key(secret, roster[other].mask, label), silo < other)
    return plain
