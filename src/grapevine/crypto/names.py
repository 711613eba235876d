"""Names that the parties agree on and the server does not learn: of classes, and of the values of text columns.

    client j → server    for each name: its keyed hash, and the name encrypted, both under keys from the parties' common seed
    server               unites them by their hashes
    server → everybody   all of them; a party decrypts, and every party sorts alike

The server learns how many names each party has and which of them are the same, not what they say (lengths are padded). A party
learns all names, not whose they are. A name that only some may learn is replaced by its `digest`, which tells nobody but who
guesses it. Assumption: HMAC-SHA256 is a pseudorandom function, ChaCha20-Poly1305 is an authenticated
encryption; no party tells the server the seed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from grapevine.core import Client
from grapevine.core.errors import Mistake
from grapevine.crypto.agreement import AgreementError
from grapevine.crypto.stream import context, hkdf

REVEALS = "how many there are and which of them other parties have too; the names are hashed and encrypted"
MOST = 10_000  # names of one kind
BLOCK, NONCE = 64, 12  # bytes


def sealed(client: Client, kind: str, names: Iterable[str]) -> dict[str, bytes]:
    """This party's names, hidden from the server."""
    own = sorted(set(names))
    if len(own) > MOST:
        raise Mistake(f"{client.name} has {len(own)} different {kind}: at most {MOST} can be agreed on, so leave the column out.")
    hashing, cipher = _keys(client, kind)
    out = {}
    for name in own:
        data, nonce = name.encode(), os.urandom(NONCE)
        padded = len(data).to_bytes(4, "big") + data
        padded += bytes(-len(padded) % BLOCK)
        out[_hash(hashing, data)] = nonce + cipher.encrypt(nonce, padded, None)
    return out


def digest(kind: str, name: str) -> str:
    """What stands for a name as long as it is not to be known. It is the same in every job, so that all sort alike every time."""
    return hashlib.sha256(context("a name", kind=kind, name=name)).hexdigest()[:32]


def united(said: Iterable[Mapping[str, bytes]]) -> dict[str, bytes]:
    """Server: the names of all parties, each once."""
    found = {key: value for names in said for key, value in names.items()}
    return dict(sorted(found.items()))


def opened(client: Client, kind: str, names: Mapping[str, bytes]) -> list[str]:
    """All names, sorted."""
    hashing, cipher = _keys(client, kind)
    out = []
    for key, value in names.items():
        try:
            padded = cipher.decrypt(value[:NONCE], value[NONCE:], None)
            data = padded[4 : 4 + int.from_bytes(padded[:4], "big")]
            if _hash(hashing, data) != key:
                raise InvalidTag
            out.append(data.decode())
        except (InvalidTag, ValueError):
            raise AgreementError(f"one of the {kind} sent to {client.name!r} comes from no party: start a new job") from None
    return sorted(out)


def _keys(client: Client, kind: str) -> tuple[bytes, ChaCha20Poly1305]:
    seed, session = client.memory["seed"], client.memory["agreement"]["session"]
    hashing = hkdf(seed, context("hash of names", kind=kind, session=session))
    return hashing, ChaCha20Poly1305(hkdf(seed, context("names", kind=kind, session=session)))


def _hash(key: bytes, data: bytes) -> str:
    return hmac.digest(key, data, "sha256")[:16].hex()
