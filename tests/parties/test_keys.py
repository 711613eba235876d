"""Invitations, certificates and node keys."""

from __future__ import annotations

import hashlib
import ssl
import stat

import pytest
from cryptography import x509

from grapevine.core.errors import Mistake
from grapevine.parties import keys

TOKEN = keys.Token("host.example.org", 8443, "trial", "north", "ab" * 32, bytes(range(16)))


def test_a_token_says_what_was_put_in():
    assert keys.read_token(TOKEN.text()) == TOKEN


def test_a_token_survives_line_breaks_of_a_letter():
    text = TOKEN.text()
    assert keys.read_token(f"  {text[:40]}\n{text[40:80]} \r\n{text[80:]}\n") == TOKEN


def test_a_token_with_any_letter_changed_is_refused():
    text = TOKEN.text()
    for at in range(len(text)):
        wrong = "A" if text[at] != "A" else "B"
        with pytest.raises(Mistake, match="not a complete invitation"):
            keys.read_token(text[:at] + wrong + text[at + 1 :])


@pytest.mark.parametrize("text", ["", "grapevine-", "grapevine-AAAA", TOKEN.text()[:-5], "x" * 5000, "grapevine-ä"])
def test_what_is_no_token_is_refused(text):
    with pytest.raises(Mistake, match="grapevine host --invite"):
        keys.read_token(text)


# ---------------------------------------------------------------- certificates


def test_certificates_are_good_for_the_address_and_private_keys_are_private(tmp_path):
    keys.make_certificates(tmp_path, "trial", ["host.example.org", "10.1.2.3", "::1"])
    made = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["host.example.org", "10.1.2.3", "::1", "localhost", "127.0.0.1"]
    for key in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600


def test_the_fingerprint_is_that_of_the_certificate(tmp_path):
    keys.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    pem = (tmp_path / "ca.crt").read_text()
    assert keys.ca_fingerprint(pem.encode()) == hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def test_certificates_are_made_once(tmp_path):
    keys.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    keys.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_node_key_is_made_once_and_only_such_keys_are_taken(tmp_path):
    first = keys.make_node_key(tmp_path)
    assert first == keys.make_node_key(tmp_path) == keys.check_node_key(first + " a comment\n")
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    for wrong in ("", "ssh-rsa AAAA", "ecdsa-sha2-nistp384 AAAA", first[:-8], (tmp_path / "node.key").read_text()):
        with pytest.raises(Mistake, match="EC P-384"):
            keys.check_node_key(wrong)
