"""Key agreement: known answers, what is refused, and who ends up knowing what."""

import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from grapevine.core.errors import Mistake
from grapevine.core.wire import decode, encode
from grapevine.crypto import agreement as ag
from grapevine.crypto.agreement import Agreement, AgreementError, Ephemeral, Identity
from grapevine.crypto.stream import context, fresh_secret, hkdf

SESSION = "flowers-7"
NAMES = ["ana", "ben", "cleo"]


class Parties:
    """Three parties after exchange 1, and what the server relayed."""

    def __init__(self, session=SESSION, names=NAMES):
        self.identities = {name: Identity.generate() for name in names}
        self.pinned = {name: identity.public for name, identity in self.identities.items()}
        self.session, self.roster = session, ag.roster_hash(self.pinned, session)
        self.ephemeral = {name: Ephemeral.generate() for name in names}
        self.offers = {name: self.offer(name) for name in names}

    def offer(self, name, ephemeral=None, identity=None, session=None, roster=None, signed_name=None):
        ephemeral, identity = ephemeral or self.ephemeral[name], identity or self.identities[name]
        return ephemeral.offer(identity, signed_name or name, session or self.session, roster or self.roster)

    def reach(self, name, offers=None):
        return Agreement.reach(name, self.session, self.ephemeral[name], offers or self.offers, self.pinned)

    def all(self):
        return {name: self.reach(name) for name in self.offers}


# --- known answers ------------------------------------------------------------------------------------------------------------

# RFC 8032, section 7.1: secret, public, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
]

# RFC 7748, section 6.1.
ANA_SECRET = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BEN_SECRET = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
ANA_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BEN_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")


@pytest.mark.parametrize("secret, public, message, signature", RFC_8032)
def test_identities_sign_as_in_rfc_8032(secret, public, message, signature):
    identity = Identity(bytes.fromhex(secret))
    assert identity.public.hex() == public
    assert identity.sign(bytes.fromhex(message)).hex() == signature


def test_exchange_gives_the_answers_of_rfc_7748():
    # Section 5.2, first vector.
    scalar = Ephemeral(bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"))
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert scalar.exchange(point).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    ana, ben = Ephemeral(ANA_SECRET), Ephemeral(BEN_SECRET)
    assert (ana.public, ben.public) == (ANA_PUBLIC, BEN_PUBLIC)
    assert ana.exchange(BEN_PUBLIC) == ben.exchange(ANA_PUBLIC) == SHARED


def test_a_pair_secret_is_hkdf_of_the_rfc_7748_value_with_everything_bound():
    keys = dict(ana=ANA_PUBLIC, ben=BEN_PUBLIC)
    info = context("pair secret", first="ana", second="ben", session="s", roster=b"r", keys=ag.key_hash(keys))
    expected = hkdf(SHARED, info)

    def secret(me: str, session: str = "s", roster: bytes = b"r", keys: dict = keys) -> bytes:
        other, scalar = ("ben", ANA_SECRET) if me == "ana" else ("ana", BEN_SECRET)
        return Agreement(me, session, roster, Ephemeral(scalar), keys).pair_secret(other)

    assert secret("ana") == secret("ben") == expected
    assert secret("ana", session="t") != expected
    assert secret("ana", roster=b"q") != expected
    assert secret("ana", keys=keys | dict(cleo=bytes(32))) != expected


# Points of order 1, 2, 4 and 8 on Curve25519 and its twist (RFC 7748, section 6.1: the result is all zero).
SMALL_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_an_all_zero_exchange_is_refused_and_the_party_named(point):
    with pytest.raises(AgreementError, match="'ben'.*small order"):
        Agreement("ana", "s", b"r", Ephemeral(ANA_SECRET), dict(ana=ANA_PUBLIC, ben=bytes.fromhex(point))).pair_secret("ben")


# --- identities on disk -------------------------------------------------------------------------------------------------------


def test_an_identity_survives_saving_and_only_its_owner_can_read_it(tmp_path):
    identity, path = Identity.generate(), tmp_path / "identity.pem"
    identity.save(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert path.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert Identity.load(path).public == identity.public
    with pytest.raises(AgreementError, match="exists"):
        identity.save(path)
    path.chmod(0o640)
    with pytest.raises(AgreementError, match="mode 640.*chmod 600"):
        Identity.load(path)


def test_what_is_no_identity_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(Mistake, match="cannot be read"):
        Identity.load(tmp_path / "none.pem")
    text, other = tmp_path / "text.pem", tmp_path / "other.pem"
    text.write_text("hello")
    form = serialization.PrivateFormat.PKCS8
    other.write_bytes(X25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    for path, words in ((text, "no private key"), (other, "not Ed25519")):
        path.chmod(0o600)
        with pytest.raises(AgreementError, match=words):
            Identity.load(path)


def test_fingerprints_are_readable_and_differ():
    one, two = Identity.generate(), Identity.generate()
    assert one.fingerprint == ag.fingerprint(one.public) != two.fingerprint
    groups = one.fingerprint.split(" ")
    assert [len(group) for group in groups] == [4] * 8 and all(group.isalnum() for group in groups)


def test_nothing_secret_is_printed():
    parties = Parties()
    agreed = parties.reach("ana")
    secrets = [parties.ephemeral["ana"].to_dict()["secret"], agreed.pair_secret("ben")]
    shown = f"{parties.identities['ana']!r} {parties.ephemeral['ana']!r} {agreed!r}"
    assert "ana" in shown and parties.identities["ana"].fingerprint in shown
    for secret in secrets:
        assert secret.hex() not in shown and repr(secret) not in shown


# --- roster and offers --------------------------------------------------------------------------------------------------------


def test_the_roster_hash_knows_names_identities_and_session_but_no_order():
    a, b = Identity.generate().public, Identity.generate().public
    first = ag.roster_hash(dict(ana=a, ben=b), "s")
    assert ag.roster_hash(dict(ben=b, ana=a), "s") == first
    others = [dict(ana=b, ben=a), dict(ana=a), dict(ana=a, bea=b)]
    assert len({first, ag.roster_hash(dict(ana=a, ben=b), "t"), *(ag.roster_hash(o, "s") for o in others)}) == 5
    with pytest.raises(AgreementError, match="'ben' and 'ana' have one identity"):
        ag.roster_hash(dict(ana=a, ben=a), "s")
    with pytest.raises(AgreementError, match="'ana' has 31 bytes"):
        ag.roster_hash(dict(ana=a[1:]), "s")


def test_all_agree_on_the_same_secrets_and_no_two_pairs_share_one():
    agreed = Parties().all()
    assert len({a.key_hash for a in agreed.values()}) == 1
    secrets = set()
    for j in NAMES:
        for k in NAMES:
            if j < k:
                assert agreed[j].pair_secret(k) == agreed[k].pair_secret(j)
                secrets.add(agreed[j].pair_secret(k))
    assert len(secrets) == 3
    assert agreed["ben"].pair_secrets(NAMES) == {k: agreed[k].pair_secret("ben") for k in ("ana", "cleo")}
    with pytest.raises(AgreementError, match="itself"):
        agreed["ana"].pair_secret("ana")
    with pytest.raises(AgreementError, match="'dora' offered no key"):
        agreed["ana"].pair_secret("dora")


def test_a_key_that_was_swapped_on_the_way_is_refused():
    """A relaying server in the middle: it puts its own key in place of ben's, with whatever signature it can make."""
    parties, mine, intruder = Parties(), Ephemeral.generate(), Identity.generate()
    swapped = [
        dict(public=mine.public, signature=parties.offers["ben"]["signature"]),  # ben's signature, another key
        parties.offer("ben", mine, intruder),  # signed by somebody else
        parties.offers["cleo"],  # cleo's own offer, as if it were ben's
        parties.offer("ben", session="flowers-6"),  # from another session
        parties.offer("ben", roster=bytes(32)),  # under another roster
        parties.offer("ben", signed_name="cleo"),
        dict(public=parties.offers["ben"]["public"], signature=bytes(64)),
        dict(public=parties.offers["ben"]["public"], signature=b""),
    ]
    for offer in swapped:
        with pytest.raises(AgreementError, match="'ben'.*not signed by the identity pinned"):
            parties.reach("ana", parties.offers | dict(ben=offer))


def test_offers_that_are_signed_but_wrong_are_refused():
    parties = Parties()
    stranger = dict(dora=parties.offer("ana", signed_name="dora"))
    with pytest.raises(AgreementError, match="'dora'.*not on the roster"):
        parties.reach("ana", parties.offers | stranger)
    copied = parties.offer("ben", parties.ephemeral["ana"])
    with pytest.raises(AgreementError, match="'ben'.*malformed or another party's"):
        parties.reach("ana", parties.offers | dict(ben=copied))
    with pytest.raises(AgreementError, match="did not relay the key that 'ana' offered"):
        parties.reach("ana", parties.offers | dict(ana=parties.offer("ana", Ephemeral.generate())))
    with pytest.raises(AgreementError, match="did not relay"):
        parties.reach("ana", {name: parties.offers[name] for name in ("ben", "cleo")})
    with pytest.raises(AgreementError, match="alone"):
        parties.reach("ana", dict(ana=parties.offers["ana"]))


def test_a_party_that_dropped_out_before_is_simply_left_out():
    parties = Parties()
    two = {name: parties.offers[name] for name in ("ana", "ben")}
    ana, ben = parties.reach("ana", two), parties.reach("ben", two)
    assert ana.others == ["ben"] and ana.pair_secret("ben") == ben.pair_secret("ana")


def test_clients_that_were_shown_different_keys_share_nothing():
    parties = Parties()
    ana = parties.reach("ana")
    ben = parties.reach("ben", {name: parties.offers[name] for name in ("ana", "ben")})
    assert ana.key_hash != ben.key_hash and ana.pair_secret("ben") != ben.pair_secret("ana")
    with pytest.raises(AgreementError):
        ben.open("ana", "seed", 0, ana.seal("ben", "seed", 0, b"hello"))


def test_an_agreement_lives_through_the_codec():
    parties = Parties()
    agreed = parties.reach("ana")
    again = Agreement.from_dict(decode(encode(agreed.to_dict())))
    assert again.key_hash == agreed.key_hash and again.roster == agreed.roster and again.others == agreed.others
    assert again.pair_secret("ben") == parties.reach("ben").pair_secret("ana")


# --- letters ------------------------------------------------------------------------------------------------------------------


def test_a_letter_opens_at_its_reader_alone():
    agreed = Parties().all()
    letter = agreed["ana"].seal("ben", "note", 3, b"hello")
    assert agreed["ben"].open("ana", "note", 3, letter) == b"hello"
    assert len(letter) == len(b"hello") + 28 and b"hello" not in letter
    with pytest.raises(AgreementError, match="'note' number 3 from 'ana' to 'cleo'"):
        agreed["cleo"].open("ana", "note", 3, letter)


def test_a_changed_letter_is_refused_whichever_bit_it_is():
    agreed = Parties().all()
    letter = agreed["ana"].seal("ben", "note", 0, b"hi")
    for at in range(8 * len(letter)):
        changed = bytearray(letter)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(AgreementError):
            agreed["ben"].open("ana", "note", 0, bytes(changed))
    for cut in (b"", letter[:5], letter[:12], letter[:-1], letter + b"\0"):
        with pytest.raises(AgreementError):
            agreed["ben"].open("ana", "note", 0, cut)


def test_replayed_reordered_and_reflected_letters_are_refused():
    parties = Parties()
    agreed = parties.all()
    first, second = (agreed["ana"].seal("ben", "note", n, b"%d" % n) for n in (1, 2))
    assert agreed["ben"].open("ana", "note", 1, first) == b"1"
    refused = [
        (agreed["ben"], "ana", "note", 2, first),  # replayed for the next one
        (agreed["ben"], "ana", "note", 1, second),  # reordered
        (agreed["ben"], "ana", "seed", 1, first),  # as another kind
        (agreed["ben"], "cleo", "note", 1, first),  # as from another sender
        (agreed["ana"], "ben", "note", 1, first),  # reflected to its sender
    ]
    for reader, sender, kind, sequence, letter in refused:
        with pytest.raises(AgreementError):
            reader.open(sender, kind, sequence, letter)


def test_a_letter_does_not_open_in_another_session_roster_or_agreement(monkeypatch):
    """Even with the same pair secret: the header holds session, roster and the hash of all keys."""
    monkeypatch.setattr(Agreement, "pair_secret", lambda self, other: bytes(32))
    place = dict(session="s", roster=b"r", keys=dict(ana=ANA_PUBLIC, ben=BEN_PUBLIC))

    def party(name: str, **change) -> Agreement:
        return Agreement(name, ephemeral=Ephemeral(ANA_SECRET), **(place | change))

    letter = party("ana").seal("ben", "note", 0, b"x")
    assert party("ben").open("ana", "note", 0, letter) == b"x"
    for change in (dict(session="t"), dict(roster=b"q"), dict(keys=dict(ana=BEN_PUBLIC, ben=ANA_PUBLIC))):
        with pytest.raises(AgreementError):
            party("ben", **change).open("ana", "note", 0, letter)


def test_sealing_twice_gives_two_nonces():
    ana = Parties().reach("ana")
    letters = {ana.seal("ben", "note", 0, b"same") for _ in range(50)}
    assert len({letter[: ag.NONCE_BYTES] for letter in letters}) == 50


# --- the seed -----------------------------------------------------------------------------------------------------------------


def exchange_seed(agreed, contributions, names=NAMES):
    sealed = {name: agreed[name].seal_seed(contributions[name]) for name in names}
    return {name: agreed[name].open_seed(contributions[name], {k: sealed[k][name] for k in names if k != name}) for name in names}


def test_all_clients_get_one_seed_and_every_contribution_counts():
    agreed = Parties().all()
    contributions = {name: fresh_secret() for name in NAMES}
    seeds = set(exchange_seed(agreed, contributions).values())
    assert len(seeds) == 1
    for name in NAMES:
        seeds |= set(exchange_seed(agreed, contributions | {name: fresh_secret()}).values())
    assert len(seeds) == 4


def test_the_seed_is_hkdf_of_the_contributions_in_the_order_of_names():
    agreed = Parties().all()
    contributions = dict(ana=b"a" * 32, ben=b"b" * 32, cleo=b"c" * 32)
    names = b"".join(context("party", name=name) for name in NAMES)
    ana = agreed["ana"]
    info = context("seed", names=names, sequence=0, session=SESSION, roster=ana.roster, keys=ana.key_hash)
    expected = hkdf(b"a" * 32 + b"b" * 32 + b"c" * 32, info)
    assert exchange_seed(agreed, contributions) == dict.fromkeys(NAMES, expected)


def test_a_party_lost_in_the_second_exchange_is_left_out_of_the_seed():
    agreed = Parties().all()
    contributions = {name: fresh_secret() for name in NAMES}
    without = exchange_seed(agreed, contributions, ["ana", "cleo"])
    assert without["ana"] == without["cleo"] != exchange_seed(agreed, contributions)["ana"]


def test_the_server_can_neither_forge_nor_repeat_a_contribution():
    agreed = Parties().all()
    old = agreed["ben"].seal_seed(fresh_secret(), sequence=0)["ana"]
    for letter in (old, os.urandom(60)):
        with pytest.raises(AgreementError, match="'ben'"):
            agreed["ana"].open_seed(fresh_secret(), dict(ben=letter), sequence=1)
    with pytest.raises(AgreementError, match="at least two"):
        agreed["ana"].open_seed(fresh_secret(), {})
    with pytest.raises(AgreementError, match="'ben'.*31 bytes"):
        agreed["ana"].open_seed(fresh_secret(), dict(ben=agreed["ben"].seal("ana", "seed", 0, bytes(31))))


# --- occasions ----------------------------------------------------------------------------------------------------------------


def test_every_part_of_an_occasion_changes_its_context():
    agreed, other = Parties().reach("ana"), Parties().reach("ana")
    base = dict(step="sum", round=1, attempt=1, parties=NAMES)
    changes = [{}, dict(step="rows"), dict(round=2), dict(attempt=2), dict(parties=["ana", "ben"])]
    contexts = [agreed.occasion(**(base | change)).context("mask", shape="2x3") for change in changes]
    contexts += [other.occasion(**base).context("mask", shape="2x3"), agreed.occasion(**base).context("mask", shape="3x2")]
    assert len(set(contexts)) == len(contexts)
    assert agreed.occasion(**(base | dict(parties=NAMES[::-1]))) == agreed.occasion(**base)


@pytest.mark.parametrize("parties", [["ana", "dora"], ["ben", "cleo"], []])
def test_an_occasion_without_me_or_with_a_stranger_is_refused(parties):
    with pytest.raises(AgreementError, match="those who agreed are ana, ben, cleo"):
        Parties().reach("ana").occasion("sum", 0, 0, parties)
