"""Who is who between machines: the host's certificate authority, its server certificate, a party's node key, and invitations.

An invitation is a token that the host hands to one party over a channel both trust (a letter, a telephone call). It holds the
host's address, the fingerprint of its certificate authority, the party's name and a secret that is good for one enrolment. The
host keeps only the secret's hash.

    token = "grapevine-" + base64url(JSON of address, port, federation, name | "\\n" | fingerprint, 32 bytes | secret, 16 bytes
                                     | first 4 bytes of SHA-256 of all before)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from grapevine.core.errors import Mistake
from grapevine.crypto.stream import fresh_secret

YEARS = 5  # that a certificate is valid
SECRET_BYTES = 16
AHEAD, BEHIND = 5, 300  # seconds by which Flower lets a party's clock be ahead of the host's, or behind it
PREFIX = "grapevine-"


# ---------------------------------------------------------------- invitations


@dataclass(frozen=True)
class Token:
    """An invitation. Its text is a secret until it has been used."""

    address: str
    port: int
    federation: str
    name: str
    ca: str  # SHA-256 of the certificate authority, in hex
    secret: bytes = field(repr=False)

    def text(self) -> str:
        head = json.dumps([self.address, self.port, self.federation, self.name], separators=(",", ":")).encode()
        body = head + b"\n" + bytes.fromhex(self.ca) + self.secret
        return PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")


def new_secret() -> bytes:
    return fresh_secret()[:SECRET_BYTES]


def secret_hash(secret: bytes) -> str:
    """What the host keeps. The secret has 128 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(b"grapevine invitation\n" + secret).hexdigest()


def read_token(text: str) -> Token:
    """A token from its text; a `Mistake` for one that was cut off or mistyped."""
    text = "".join(text.split())  # mail programs break lines
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        coded = text.removeprefix(PREFIX)
        raw = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        body, check = raw[:-4], raw[-4:]
        if check != _check(body):
            raise ValueError
        head, rest = body.split(b"\n", 1)
        address, port, federation, name = json.loads(head)
        if len(rest) != 32 + SECRET_BYTES:
            raise ValueError
        token = Token(str(address), int(port), str(federation), str(name), rest[:32].hex(), rest[32:])
        if token.text() != text:
            raise ValueError
        return token
    except (ValueError, TypeError, binascii.Error):
        short = text if len(text) <= 24 else f"{text[:16]}…{text[-4:]}"
        raise Mistake(
            f"'{short}' is not a complete invitation: copy everything that `grapevine host --invite NAME` printed."
        ) from None


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]


# ---------------------------------------------------------------- certificates


def make_certificates(folder: Path, federation: str, addresses: Iterable[str]) -> None:
    """ca.crt, ca.key, server.pem and server.key; what is there already is kept. Only their owner can read the private keys."""
    if not (folder / "ca.crt").exists():
        key = _new_key(folder / "ca.key")
        made = _certificate(f"Grapevine federation {federation}", key, key, None, [])
        (folder / "ca.crt").write_bytes(made)
    if not (folder / "server.pem").exists():
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        signer = _elliptic(serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None))
        names = [_general_name(address) for address in dict.fromkeys([*addresses, "localhost", "127.0.0.1"])]
        made = _certificate(f"Grapevine host of {federation}", _new_key(folder / "server.key"), signer, authority.subject, names)
        (folder / "server.pem").write_bytes(made)


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return key


def _elliptic(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Mistake("a private key in this folder was not made by Grapevine: restore the old one, or use a new folder.")
    return key


def private(path: Path, data: bytes) -> None:
    """A new file that only its owner may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, issuer: x509.Name | None,
    names: list[x509.GeneralName],
) -> bytes:  # fmt: skip
    """An authority's own certificate (without an issuer), or one for a server under these names."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    now, authority = datetime.now(timezone.utc), not names
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    usage = x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **dict.fromkeys(others, False)
    )
    builder = (
        x509.CertificateBuilder(issuer or name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a party's clock may be behind
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if names:
        builder = (
            builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def ca_fingerprint(pem: bytes) -> str:
    """SHA-256 of a certificate, in hex: what an invitation pins."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise Mistake("the host did not send a certificate: check the address in the invitation.") from None
    return certificate.fingerprint(hashes.SHA256()).hex()


# ---------------------------------------------------------------- node keys


def make_node_key(folder: Path) -> str:
    """node.key and node.pub (EC P-384, OpenSSH), with which a party's node proves itself to the host. Kept if they are there."""
    path = Path(folder) / "node.key"
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        form = serialization.PrivateFormat.OpenSSH
        private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    key = _elliptic(serialization.load_ssh_private_key(path.read_bytes(), None))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    (Path(folder) / "node.pub").write_text(public + "\n")
    return public


def one_form(key: bytes) -> bytes:
    """A public key in one form, whether it came as OpenSSH or as PEM; as it is if it is neither."""
    try:
        public = serialization.load_ssh_public_key(key) if key.startswith(b"ecdsa-") else serialization.load_pem_public_key(key)
    except Exception:  # the library has several kinds of error for bytes that are no key
        return key
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def node_signature(headers: Mapping[str, str]) -> bytes | None:
    """The key, in one form, with which a Flower node signed the time in its headers; None if it did not, or at another time.

    Flower checks the same once it has the whole request. Here it decides whether the rest of it is read at all.
    """
    try:
        public, signature = (base64.b64decode(headers[f"flwr-{name}"], validate=True) for name in ("public-key", "signature"))
        signed = headers["flwr-timestamp"]
        age = (datetime.now(timezone.utc) - datetime.fromisoformat(signed)).total_seconds()
        if not -AHEAD < age < BEHIND + AHEAD:
            return None
        key = _elliptic_public(serialization.load_pem_public_key(public))
        key.verify(signature, signed.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except Exception:  # whatever a stranger may have put there
        return None
    return one_form(public)


def _elliptic_public(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not a key of a node")
    return key


def check_node_key(text: str) -> str:
    """A node's public key as it came from a party, in its one form."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except Exception:  # the library has several kinds of error for bytes that are no key
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise Mistake("the node key is not an EC P-384 key in OpenSSH form: let `grapevine join` make it.")
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def check_clock(theirs: float, before: float, after: float) -> float:
    """Seconds that this clock is ahead of the host's; a `Mistake` if it is off by more than Flower lets pass."""
    ahead = (before + after) / 2 - theirs
    if ahead > AHEAD + (after - before) or ahead < -BEHIND:
        way = "ahead of" if ahead > 0 else "behind"
        raise Mistake(
            f"this machine's clock is {abs(ahead):.0f} s {way} the host's: synchronise both with NTP (timedatectl set-ntp true)."
        )
    return ahead
