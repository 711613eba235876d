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
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from grapevine.core.errors import Mistake
from grapevine.crypto.stream import fresh_secret

YEARS = 5  # of a certificate
SECRET_BYTES = 16
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
        raise Mistake(f"'{short}' is not a whole invitation: copy all of what `grapevine host --invite NAME` printed.") from None


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]


# ---------------------------------------------------------------- certificates


def make_certificates(folder: Path, federation: str, addresses: Iterable[str]) -> None:
    """ca.crt, ca.key, server.pem and server.key; what is there already is kept. Only their owner can read the private keys."""
    folder = Path(folder)
    if not (folder / "ca.crt").exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder / "ca.key", key)
        (folder / "ca.crt").write_bytes(_authority(key, federation).public_bytes(serialization.Encoding.PEM))
    if not (folder / "server.pem").exists():
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        signer = _elliptic(serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None))
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder / "server.key", key)
        certificate = _server(key, authority, signer, federation, addresses)
        (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _elliptic(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Mistake("a private key of this folder is not one that Grapevine made: put the old one back, or take a new folder.")
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    private(path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


def private(path: Path, data: bytes) -> None:
    """A new file that only its owner may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _builder(subject: str, issuer: x509.Name | None, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a party's clock may be behind
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(sign: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(digital_signature=not sign, key_cert_sign=sign, crl_sign=sign, **dict.fromkeys(others, False))


def _authority(key: ec.EllipticCurvePrivateKey, federation: str) -> x509.Certificate:
    return (
        _builder(f"Grapevine federation {federation}", None, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, signer: ec.EllipticCurvePrivateKey, federation: str,
    addresses: Iterable[str],
) -> x509.Certificate:  # fmt: skip
    names = [_general_name(address) for address in dict.fromkeys([*addresses, "localhost", "127.0.0.1"])]
    return (
        _builder(f"Grapevine host of {federation}", authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def certificate_addresses(pem: bytes) -> list[str]:
    """The names and numbers a server certificate is good for."""
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def ca_fingerprint(pem: bytes) -> str:
    """SHA-256 of a certificate, in hex: what an invitation pins."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise Mistake("the host sent something that is no certificate: check the address in the invitation.") from None
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


def check_node_key(text: str) -> str:
    """A node's public key as it came from a party, in its one form."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except Exception:  # the library has several kinds of error for bytes that are no key
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise Mistake("the node key is not an EC P-384 key in OpenSSH form: let `grapevine join` make it.")
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
