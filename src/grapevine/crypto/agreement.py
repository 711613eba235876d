"""Key agreement: who takes part, keys that no relay can swap, letters from client to client, and a seed the server lacks.

    before        every party pins the others' Ed25519 identities (fingerprints compared by people); roster = hash of all of them
    exchange 1    client j → server    X25519 public key e_j, signed by identity j over (session, roster, j, e_j)
                  server → client j    all (e_k, signature)
    exchange 2    client j             checks each signature against its pinned identity; s_jk = HKDF(X25519(e_j, e_k)) for each k
                  client j → server    for each k: Letter(s_jk, j → k, contribution c_j), c_j fresh from the operating system
                  server → client j    the letters addressed to j
    exchange 3    client j             opens them; seed = HKDF(c_1 | c_2 | … in the order of names)

Claim: a server that relays and records everything learns no s_jk, no contribution and no seed, and cannot put its own key
between two clients. A client outside the pair (j, k) learns nothing about s_jk. The seed is known to every client that
contributed, and is uniform as long as one contribution is: nobody chooses it alone, because all are sealed before any is
opened.

Assumptions: computational Diffie–Hellman on Curve25519 in the random oracle model for HKDF-SHA256, unforgeability of Ed25519,
ChaCha20-Poly1305 as an authenticated cipher, and that the pinned identities are the right ones.

What each side learns: everyone the names, identities and ephemeral public keys; clients the seed. Under collusion: a client
that colludes with the server hands it the seed and that client's own pair secrets; s_jk of two honest clients stays unknown.
Protocols that rest on the seed (psm) therefore break under such a collusion, those that rest on pair secrets (masked sums) do
not.

Ephemeral keys live only in a party's own memory. When they are deleted after the job, a later theft of the identity opens
nothing.

A letter has its own key: HKDF(s_jk, info) with info = session, roster, hash of all ephemeral keys, sender, receiver, kind and
sequence; the same info is its header. So a letter that is reflected, moved to another kind, round, pair or session, or changed,
does not open. The nonce is 96 random bits: a step that is asked twice (a lost reply) may seal two different plaintexts in one
slot, which a derived nonce would turn into nonce reuse. ChaCha20-Poly1305 rather than AES-GCM: letters are short, so speed does
not matter, and it needs no AES hardware to run in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from grapevine.core.errors import Mistake
from grapevine.crypto.stream import SECRET_BYTES, context, fresh_secret, hkdf

PUBLIC_BYTES = 32
NONCE_BYTES = 12

Offers = Mapping[str, Mapping[str, bytes]]  # what each party sent in exchange 1, by name


class AgreementError(Mistake):
    """A key, a signature or a letter that is not what it should be. The sentence names the party."""


# --- identities ---------------------------------------------------------------------------------------------------------------


class Identity:
    """A party's long-term Ed25519 key. It signs ephemeral keys, and what passes through the server from client to client."""

    def __init__(self, secret: bytes):
        self._key = Ed25519PrivateKey.from_private_bytes(secret)

    def __repr__(self) -> str:
        return f"Identity({self.fingerprint})"

    @classmethod
    def generate(cls) -> Identity:
        return cls(fresh_secret())

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def save(self, path: str | Path) -> None:
        """Write the secret key as PEM, readable by its owner alone. A file that exists is never overwritten."""
        pem = self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise AgreementError(f"{path} exists and is never overwritten: name another file or move it away") from None
        with os.fdopen(file, "wb") as out:
            out.write(pem)

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        try:
            mode = os.stat(path).st_mode
            pem = Path(path).read_bytes()
        except OSError as error:
            raise AgreementError(f"the identity {path} cannot be read ({error.strerror}): name its file") from None
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise AgreementError(f"the identity {path} can be read by others (mode {stat.S_IMODE(mode):o}): chmod 600 {path}")
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            raise AgreementError(f"{path} holds no private key in PEM: name the file that an identity was saved to") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise AgreementError(f"{path} holds another kind of key, not Ed25519: name the file that an identity was saved to")
        return cls(key.private_bytes_raw())


def fingerprint(public: bytes) -> str:
    """160 bits of a hash of the public key, eight groups of four letters and digits, for people to compare."""
    digest = hashlib.sha256(context("identity", public=public)).digest()[:20]
    text = base64.b32encode(digest).decode()
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def roster_hash(identities: Mapping[str, bytes], session: str) -> bytes:
    """The hash of all pinned identities, in the order of their names. It is fixed before the first exchange."""
    holders: dict[bytes, str] = {}
    for name, public in sorted(identities.items()):
        if len(public) != PUBLIC_BYTES:
            raise AgreementError(f"the identity of {name!r} has {len(public)} bytes, not {PUBLIC_BYTES}: ask for it again")
        if public in holders:
            raise AgreementError(f"{name!r} and {holders[public]!r} have one identity: every party needs its own")
        holders[public] = name
    return hashlib.sha256(_listing("roster", identities, session=session)).digest()


def _listing(label: str, values: Mapping[str, bytes], **more: int | str | bytes) -> bytes:
    """An unambiguous string for a set of named values: each pair with its lengths, in the order of names."""
    pairs = b"".join(context("entry", name=name, value=values[name]) for name in sorted(values))
    return context(label, count=len(values), pairs=pairs, **more)


# --- ephemeral keys -----------------------------------------------------------------------------------------------------------


class Ephemeral:
    """A party's X25519 key for one agreement."""

    def __init__(self, secret: bytes):
        self._key = X25519PrivateKey.from_private_bytes(secret)

    def __repr__(self) -> str:
        return "Ephemeral(secret hidden)"

    @classmethod
    def generate(cls) -> Ephemeral:
        return cls(fresh_secret())

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def offer(self, identity: Identity, name: str, session: str, roster: bytes) -> dict[str, bytes]:
        """The message of exchange 1: the public key, signed by the identity."""
        return dict(public=self.public, signature=identity.sign(_signed(name, self.public, session, roster)))

    def exchange(self, public: bytes) -> bytes:
        """The raw X25519 value (RFC 7748). ValueError if it is all zero, which the library checks: a key of small order."""
        return self._key.exchange(X25519PublicKey.from_public_bytes(public))

    def to_dict(self) -> dict[str, bytes]:
        return dict(secret=self._key.private_bytes_raw())

    @classmethod
    def from_dict(cls, state: Mapping[str, bytes]) -> Ephemeral:
        return cls(state["secret"])


def _signed(name: str, public: bytes, session: str, roster: bytes) -> bytes:
    return context("offer", name=name, public=public, session=session, roster=roster)


def verify_offers(offers: Offers, pinned: Mapping[str, bytes], session: str, roster: bytes) -> dict[str, bytes]:
    """The ephemeral public keys by name, once every signature holds. A party that dropped out is simply not among them."""
    keys: dict[str, bytes] = {}
    for name in sorted(offers):
        if name not in pinned:
            raise AgreementError(f"{name!r} offers a key in session {session!r} but is not on the roster: pin its identity first")
        public, signature = offers[name]["public"], offers[name]["signature"]
        what = f"the key offered as {name!r} in session {session!r}"
        try:
            Ed25519PublicKey.from_public_bytes(pinned[name]).verify(signature, _signed(name, public, session, roster))
        except InvalidSignature:
            pin = fingerprint(pinned[name])
            raise AgreementError(f"{what} is not signed by the identity pinned for it ({pin}): compare fingerprints") from None
        if len(public) != PUBLIC_BYTES or public in keys.values():
            raise AgreementError(f"{what} is malformed or another party's: start a new session")
        keys[name] = public
    return keys


def key_hash(keys: Mapping[str, bytes]) -> bytes:
    """The hash of all ephemeral keys. It goes into every later HKDF info and letter header, so that clients to whom the
    server showed different keys share nothing."""
    return hashlib.sha256(_listing("ephemeral keys", keys)).digest()


# --- one client's side of it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Occasion:
    """What makes one use of a secret different from every other. Masks are one-time, so all of it is in their HKDF info."""

    session: str
    roster: bytes
    keys: bytes  # key_hash
    step: str
    round: int
    attempt: int
    parties: tuple[str, ...]  # sorted: who takes part in this attempt

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.step!r} in round {self.round}"

    def context(self, label: str, **parts: int | str | bytes) -> bytes:
        return context(label, session=self.session, roster=self.roster, keys=self.keys, step=self.step, round=self.round,
                       attempt=self.attempt, parties=self._names, **parts)  # fmt: skip

    @cached_property
    def _names(self) -> bytes:
        # A context is made for every pair, and encoding all names for each took most of the time with many clients.
        return _party_list(self.parties)


def _party_list(names: Iterable[str]) -> bytes:
    return b"".join(context("party", name=name) for name in names)


class Agreement:
    """What a client holds after exchange 1: its ephemeral key and everybody's checked public ones."""

    def __init__(self, name: str, session: str, roster: bytes, ephemeral: Ephemeral, keys: Mapping[str, bytes]):
        self.name, self.session, self.roster = name, session, roster
        self.ephemeral, self.keys = ephemeral, dict(keys)
        self.key_hash = key_hash(self.keys)

    def __repr__(self) -> str:
        return f"Agreement({self.name!r} in session {self.session!r} with {', '.join(self.others)}; secrets hidden)"

    @classmethod
    def reach(cls, name: str, session: str, ephemeral: Ephemeral, offers: Offers, pinned: Mapping[str, bytes]) -> Agreement:
        """Check the offers that the server relayed, against this party's own pinned identities and its own key."""
        roster = roster_hash(pinned, session)
        keys = verify_offers(offers, pinned, session, roster)
        if keys.get(name) != ephemeral.public:
            raise AgreementError(f"the server did not relay the key that {name!r} offered: start a new session")
        if len(keys) < 2:
            raise AgreementError(f"{name!r} is alone in session {session!r}: at least two parties must offer a key")
        return cls(name, session, roster, ephemeral, keys)

    @property
    def others(self) -> list[str]:
        return sorted(set(self.keys) - {self.name})

    def _bound(self, label: str, **parts: int | str | bytes) -> bytes:
        """A context of this agreement: session, roster and the hash of all keys."""
        return context(label, session=self.session, roster=self.roster, keys=self.key_hash, **parts)

    def pair_secret(self, other: str) -> bytes:
        """s_jk: the same 32 bytes at both ends, and nowhere else."""
        if other == self.name:
            raise AgreementError(f"{other!r} has no pair secret with itself: name another party")
        if other not in self.keys:
            raise AgreementError(f"{other!r} offered no key in session {self.session!r}: leave it out or start a new session")
        try:
            shared = self.ephemeral.exchange(self.keys[other])
        except ValueError:
            raise AgreementError(f"the key of {other!r} is of small order: {other!r} must offer another") from None
        first, second = sorted((self.name, other))
        return hkdf(shared, self._bound("pair secret", first=first, second=second))

    def pair_secrets(self, parties: Iterable[str]) -> dict[str, bytes]:
        """s_jk for every k of `parties` but this one."""
        return {other: self.pair_secret(other) for other in sorted(set(parties) - {self.name})}

    def occasion(self, step: str, round: int, attempt: int, parties: Iterable[str]) -> Occasion:
        """`parties` take part in this attempt; they must have agreed, and this client must be one of them."""
        present = tuple(sorted(set(parties)))
        if not set(present) <= set(self.keys) or self.name not in present:
            asked, agreed = ", ".join(present) or "nobody", ", ".join(sorted(self.keys))
            raise AgreementError(f"{step!r} was asked of {self.name!r} with {asked}, but those who agreed are {agreed}")
        return Occasion(self.session, self.roster, self.key_hash, step, round, attempt, present)

    def seal(self, to: str, kind: str, sequence: int, plaintext: bytes) -> bytes:
        """A letter, nonce | ciphertext | tag: 28 bytes more than the plaintext."""
        header = self._bound("letter", sender=self.name, receiver=to, kind=kind, sequence=sequence)
        nonce = os.urandom(NONCE_BYTES)
        return nonce + ChaCha20Poly1305(hkdf(self.pair_secret(to), header)).encrypt(nonce, plaintext, header)

    def open(self, sender: str, kind: str, sequence: int, letter: bytes) -> bytes:
        """The plaintext, if the letter was sealed by `sender` for this party, this kind, this sequence and this agreement."""
        header = self._bound("letter", sender=sender, receiver=self.name, kind=kind, sequence=sequence)
        cipher = ChaCha20Poly1305(hkdf(self.pair_secret(sender), header))
        try:
            return cipher.decrypt(letter[:NONCE_BYTES], letter[NONCE_BYTES:], header)
        except (InvalidTag, ValueError):
            letter_of = f"the letter {kind!r} number {sequence} from {sender!r} to {self.name!r}"
            raise AgreementError(f"{letter_of} was changed or belongs elsewhere: start a new session") from None

    def seal_seed(self, contribution: bytes, sequence: int = 0) -> dict[str, bytes]:
        """Exchange 2: this client's contribution, sealed to each other one. Keep it in memory: a repeated step sends the same."""
        return {other: self.seal(other, "seed", sequence, contribution) for other in self.others}

    def open_seed(self, contribution: bytes, letters: Mapping[str, bytes], sequence: int = 0) -> bytes:
        """Exchange 3: the seed from everybody's contribution. Clients that were shown different letters get different seeds."""
        parts = {sender: self.open(sender, "seed", sequence, letter) for sender, letter in sorted(letters.items())}
        parts[self.name] = contribution
        for name, part in parts.items():
            if len(part) != SECRET_BYTES:
                raise AgreementError(f"the contribution of {name!r} to the seed has {len(part)} bytes, not {SECRET_BYTES}")
        if len(parts) < 2:
            raise AgreementError(f"no other party contributed to the seed of {self.name!r}: at least two must")
        info = self._bound("seed", names=_party_list(sorted(parts)), sequence=sequence)
        return hkdf(b"".join(parts[name] for name in sorted(parts)), info)

    def to_dict(self) -> dict:
        """For the client's own memory, which holds nested dicts. It contains the ephemeral secret."""
        own = dict(name=self.name, session=self.session, roster=self.roster)
        return dict(own, ephemeral=self.ephemeral.to_dict(), keys=dict(self.keys))

    @classmethod
    def from_dict(cls, state: Mapping) -> Agreement:
        return cls(state["name"], state["session"], state["roster"], Ephemeral.from_dict(state["ephemeral"]), state["keys"])
