"""Joining: the host's books of invitations, keys and who is here (`Registry`), and a party's line to the host (`HostLink`).

    party → host    ca        nothing                                   ← the certificate authority; its hash must be the token's
                    settings  name, secret                              ← what all agree on, before any key is made
                    enrol     name, secret, node key, identity          ← a pass; a second time only with the same keys
                    here      name, pass, which process, what it did    ← phase, who is here, the closed roster, the host's clock
                    model     name, pass                                ← the model of a finished training job

All but `ca` over TLS that the token's fingerprint authenticates. The token's secret is good for one enrolment and for nothing
afterwards: the pass that it is exchanged for says which party is asking. Messages are small JSON; a refusal is a sentence.
"""

from __future__ import annotations

import hmac
import http.client
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grapevine.core.errors import Later, Mistake
from grapevine.core.version import __version__
from grapevine.core.words import printable
from grapevine.crypto.agreement import PUBLIC_BYTES, fingerprint
from grapevine.parties.audit import Audit
from grapevine.parties.federation import Host, load_host
from grapevine.parties.files import check_name, read_if_there, write_toml
from grapevine.parties.keys import (
    Token,
    ca_fingerprint,
    check_node_key,
    new_secret,
    secret_hash,
)
from grapevine.run.folder import lock

TOKEN_SECONDS = 14 * 24 * 3600  # an invitation that nobody used
BOOKS_SECONDS = 30  # for another process to release the books
HERE_SECONDS = 20  # a party that has not been heard of for so long is not here
TWIN = 409  # the status for a second process of a party; the first may have been killed, and then the second only has to wait
CALL_SECONDS = 15  # for one call of a party
SENTENCE = 300  # letters that a party tells the host of why it leaves
REPLY_BYTES = 2**20  # the largest reply of the host
MODEL_BYTES = 2**31
MODEL_SECONDS = 600  # for a party to fetch the model
STATES = ("here", "at work", "in trouble", "left", "refused")
NEWS = 20  # sentences about the job that a party hears of, at most, if it was away
PHASES = ("gathering", "confirming", "running", "done", "failed")


class Refused(Mistake):
    """A request of a party that the host does not grant, with the status of the reply."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


@dataclass
class Presence:
    """What a party said last."""

    seen: float = 0.0
    process: str = ""
    state: str = ""
    confirmed: str = ""
    sentence: str = ""


@dataclass
class Registry:
    """The host's books: federation.toml, invitations.toml and roster.toml on disk, and who is here in memory."""

    folder: Path
    phase: str = "gathering"
    sentence: str = ""
    later: bool = False  # a failed job may continue when its parties are there again
    epoch: str = field(default_factory=lambda: secrets.token_hex(8))  # another one says that the host was started again
    here: dict[str, Presence] = field(default_factory=dict)
    news: list[str] = field(default_factory=list)  # what every party's screen shows
    closed: set[str] | None = None  # who takes part, once that is settled
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    # ------------------------------------------------------------ on disk

    @property
    def host(self) -> Host:
        return load_host(self.folder)

    @property
    def audit(self) -> Audit:
        return Audit(self.folder)

    def roster(self) -> dict[str, dict[str, Any]]:
        return read_if_there(self.folder / "roster.toml")

    def invitations(self) -> dict[str, dict[str, Any]]:
        return read_if_there(self.folder / "invitations.toml")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One process and one thread at a time: `grapevine host --invite` runs beside the host."""
        with self._lock, ExitStack() as stack:
            until = time.monotonic() + BOOKS_SECONDS
            while True:
                try:
                    stack.enter_context(lock(self.folder / "books.lock"))
                    break
                except Mistake:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.1)
            yield

    # ------------------------------------------------------------ invitations

    def invite(self, name: str, again: bool = False) -> Token:
        """A token for one party. `again` forgets keys that the party has lost: all others must confirm the new ones."""
        check_name(name)
        with self._changing():
            host, roster, invitations = self.host, self.roster(), self.invitations()
            if name in roster and not again:
                raise Mistake(
                    f"{name} has joined (fingerprint {roster[name]['fingerprint']}): continue with `grapevine join --home`; "
                    "if it lost its keys, use --again."
                )
            if name not in host.parties:
                known = ", ".join(host.parties)
                raise Mistake(
                    f"'{name}' is not one of the agreed parties ({known}): create a new federation in another folder to add it."
                )
            secret = new_secret()
            invitations[name] = dict(hash=secret_hash(secret), expires=int(time.time()) + TOKEN_SECONDS)  # and no pass
            write_toml(self.folder / "invitations.toml", invitations, secret=True)
            if roster.pop(name, None):
                write_toml(self.folder / "roster.toml", roster)
            self.audit.write("invited", party=name, again=again)
        ca = ca_fingerprint((self.folder / "ca.crt").read_bytes())
        return Token(host.address, host.port, host.agreed.name, name, ca, secret)

    def _known(self, name: str, secret: bytes, what: str = "hash") -> None:
        """Check that the caller has the invitation (`hash`), or the pass that it was exchanged for (`pass`)."""
        invitation = self.invitations().get(name, {})
        if not hmac.compare_digest(invitation.get(what, ""), secret_hash(secret)):
            raise Refused(
                403, f"this is not a valid invitation for '{name}': ask the host to run `grapevine host --invite {name}`."
            )
        if name not in self.roster() and time.time() > invitation["expires"]:
            raise Refused(
                403, f"the invitation of '{name}' is more than {TOKEN_SECONDS // 86400} days old: ask the host for a new one."
            )

    def _pass(self, name: str) -> dict[str, Any]:
        """What the party identifies itself with from now on. Until it comes back, the invitation still gets another one, because
        the reply may be lost."""
        secret, invitations = new_secret(), self.invitations()
        invitations[name]["pass"] = secret_hash(secret)
        write_toml(self.folder / "invitations.toml", invitations, secret=True)
        return dict(secret=secret.hex())

    def _spend(self, name: str) -> None:
        """The pass has come back: the invitation is good for nothing any more."""
        if "hash" in self.invitations()[name]:
            with self._changing():
                invitations = self.invitations()
                invitations[name].pop("hash", None)
                write_toml(self.folder / "invitations.toml", invitations, secret=True)

    # ------------------------------------------------------------ what parties ask for

    def settings(self, name: str, secret: bytes) -> dict[str, Any]:
        self._known(name, secret)
        host = self.host
        return dict(agreed=host.agreed.to_dict(), hash=host.agreed.hash, time=time.time(), version=__version__)

    def enrol(self, name: str, secret: bytes, node_key: str, identity: str) -> dict[str, Any]:
        """Record a party's public keys, once. The same keys again do no harm: the first reply may have been lost."""
        self._known(name, secret)
        node_key, public = check_node_key(node_key), _identity(identity)
        with self._changing():
            roster = self.roster()
            entry = dict(node_key=node_key, identity=public.hex(), fingerprint=fingerprint(public))
            if name in roster:
                if {key: roster[name][key] for key in entry} == entry:
                    return self._pass(name)
                raise Refused(
                    409,
                    f"the invitation of '{name}' was used before, by the party with fingerprint {roster[name]['fingerprint']}: "
                    "if that was you, use the same --home; if not, warn the host, who can invite you again.",
                )
            if self.phase != "gathering":
                raise Refused(409, f"federation {self.host.agreed.name} has started without '{name}': wait for the next job.")
            for other, theirs in roster.items():
                if theirs["identity"] == entry["identity"] or theirs["node_key"] == node_key:
                    raise Refused(409, f"'{other}' already has this key: every party must create its own key in its own folder.")
            roster[name] = entry
            write_toml(self.folder / "roster.toml", roster)
            self.audit.write("joined", party=name, fingerprint=entry["fingerprint"])
            return self._pass(name)

    def hear(self, name: str, secret: bytes, process: str, state: str, confirmed: str, sentence: str) -> dict[str, Any]:
        """A sign of life, and what the party has to know in return."""
        self._known(name, secret, "pass")
        self._spend(name)
        if self.roster().get(name, {}).get("excluded"):
            raise Refused(403, f"the host continues without '{name}', which it excluded: ask it why.")
        if state not in STATES:
            raise Refused(400, f"'state' must be one of {', '.join(STATES)}.")
        with self._lock:
            old = self.here.get(name)
            gone = old is None or old.state in ("left", "refused") or time.time() - old.seen > HERE_SECONDS
            if old and not gone and old.process not in ("", process):
                raise Refused(TWIN, f"'{name}' is already connected from another process: stop that one, and join again.")
            self.here[name] = Presence(time.time(), process, state, confirmed, printable(sentence))
            if state in ("left", "refused"):
                if old is None or old.state != state:
                    self.audit.write(state, party=name, sentence=printable(sentence))
            elif gone:
                self.audit.write("came", party=name)
            return self.view()

    def view(self) -> dict[str, Any]:
        roster, host = self.roster(), self.host
        told = dict(phase=self.phase, sentence=self.sentence, later=self.later, epoch=self.epoch, parties=sorted(host.parties),
                    joined=sorted(roster), here=self.present(), hash=host.agreed.hash, time=time.time(),
                    audit=self.audit.last())  # fmt: skip
        # With many parties each is heard of less often: about twenty a second in all, and each well within HERE_SECONDS.
        told["every"] = min(HERE_SECONDS / 2, max(1.0, len(host.parties) / 20))
        told["news"] = list(enumerate(self.news))[-NEWS:]
        if self.phase != "gathering":
            told["roster"] = self.confirming()
        return told

    def model(self, name: str, secret: bytes) -> Path:
        self._known(name, secret, "pass")
        path = self.folder / "results" / "model.safetensors"
        if self.phase != "done" or not path.exists():
            raise Refused(404, "there is no model yet.")
        with self._lock:  # it says nothing while it fetches, and is not to be taken for gone
            self.here[name] = replace(self.here.get(name, Presence()), state="at work", seen=time.time() + MODEL_SECONDS)
        return path

    # ------------------------------------------------------------ what the host does

    def present(self, within: float = HERE_SECONDS) -> list[str]:
        """Parties that have been heard of within this many seconds and have not left."""
        with self._lock:
            return sorted(name for name, p in self.here.items() if time.time() - p.seen < within and p.state != "left")

    def states(self) -> list[tuple[str, str, str]]:
        """Name, state and fingerprint of every party."""
        roster, invitations, here, rows = self.roster(), self.invitations(), self.present(), []
        for name in sorted(self.host.parties):
            if name not in roster:
                state = "invited" if name in invitations else f"not invited: grapevine host {self.folder.name} --invite {name}"
            else:
                state = self.here[name].state if name in here else "joined, not here now"
                if state == "in trouble":
                    state += f": {self.here[name].sentence}"
                if roster[name].get("excluded"):
                    state = "excluded"
            rows.append((name, state, roster.get(name, {}).get("fingerprint", "")))
        return rows

    def tell(self, sentence: str) -> None:
        """Show a sentence on every party's screen."""
        with self._lock:
            self.news.append(printable(sentence))

    def exclude(self, name: str) -> None:
        """The job continues without this party, now and when the host is started again."""
        with self._changing():
            roster = self.roster()
            if name not in roster:
                raise Mistake(f"'{name}' has not joined, so there is nobody to exclude: the job begins without it by itself.")
            left = [other for other, entry in roster.items() if other != name and entry.get("in", True)]
            if len(left) < self.host.agreed.quorum:
                raise Mistake(f"without {name} there are {len(left)} parties, and the quorum is {self.host.agreed.quorum}: "
                              "start a new job with the others.")  # fmt: skip
            roster[name] = dict(roster[name], excluded=True, **{"in": False})
            write_toml(self.folder / "roster.toml", roster)
            self.audit.write("excluded", party=name)

    def gone(self) -> dict[str, str]:
        """Parties that do not come back by themselves, and how they left."""
        gone = {name: "left" for name, p in self.here.items() if p.state in ("left", "refused")}
        return gone | {name: "was excluded" for name, entry in self.roster().items() if entry.get("excluded")}

    def close(self, names: list[str]) -> None:
        """Nobody joins from now on; `names` take part."""
        with self._changing():
            roster = {name: dict(entry, **{"in": name in names}) for name, entry in self.roster().items()}
            write_toml(self.folder / "roster.toml", roster)
            self.phase, self.closed = "confirming", set(names)
            self.audit.write("closed", parties=sorted(names))

    def confirming(self) -> dict[str, str]:
        """The identities that all confirm: those of the closed roster. A party excluded while the job runs stays in it, since the
        others have summed with it; it is not in that of the next start."""
        return {name: entry["identity"] for name, entry in self.roster().items()
                if (entry.get("in", True) if self.closed is None else name in self.closed)}  # fmt: skip

    def start_anew(self) -> None:
        """As if the host had been started again: parties connect again, and let rounds be repeated that its checkpoint lacks."""
        with self._lock:
            self.epoch = secrets.token_hex(8)
            self.closed = {name for name, entry in self.roster().items() if entry["in"]}

    def turn(self, phase: str, sentence: str = "", later: bool = False) -> None:
        assert phase in PHASES
        with self._lock:
            self.phase, self.sentence, self.later = phase, sentence, later
            self.audit.write(phase, **(dict(sentence=printable(sentence)) if sentence else {}))


def _identity(text: str) -> bytes:
    try:
        public = bytes.fromhex(text)
    except ValueError:
        public = b""
    if len(public) != PUBLIC_BYTES:
        raise Refused(400, f"the identity is not a public key of {PUBLIC_BYTES} bytes in hex: let `grapevine join` make it.")
    return public


# ---------------------------------------------------------------- a party's line to the host


@dataclass(frozen=True)
class HostLink:
    """Calls to the host of a token. `ca` is its certificate authority, once it has been checked."""

    token: Token
    ca: bytes = b""
    process: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def place(self) -> str:
        return f"{self.token.address}:{self.token.port}"

    def check_ca(self) -> HostLink:
        """Fetch the certificate authority and compare it with the invitation's fingerprint: whoever is in between has another."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent, and what comes is compared
        pem = self._request(context, "GET", "ca", b"", 2**16)
        found = ca_fingerprint(pem)
        if not hmac.compare_digest(found, self.token.ca):
            raise Mistake(
                f"{self.place} shows the certificate authority {short(found)}, but the invitation names {short(self.token.ca)}: "
                "somebody may be intercepting the connection, or the host created its folder again; ask it for a new invitation."
            )
        return replace(self, ca=pem)

    def call(self, what: str, **payload: Any) -> dict[str, Any]:
        """A request and its reply. A refusal of the host is a `Mistake` with the host's sentence."""
        data = self._post(what, REPLY_BYTES, **payload)
        try:
            reply = json.loads(data)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise Mistake(f"{self.place} did not answer as a Grapevine host does: check the address in the invitation.")
        return reply

    def enrol(self, node_key: str, identity: str) -> HostLink:
        """Exchange the invitation for a pass, by which the host knows this party from now on."""
        reply = self.call("enrol", node_key=node_key, identity=identity)
        try:
            secret = bytes.fromhex(reply["secret"])
        except (KeyError, TypeError, ValueError):
            raise Mistake(
                f"{self.place} did not accept the invitation: check that it runs the same version of Grapevine."
            ) from None
        return replace(self, token=replace(self.token, secret=secret))

    def hear(self, state: str, confirmed: str = "", sentence: str = "") -> dict[str, Any]:
        return self.call("here", process=self.process, state=state, confirmed=confirmed, sentence=sentence[:SENTENCE])

    def fetch_model(self) -> bytes:
        return self._post("model", MODEL_BYTES)

    def _post(self, what: str, limit: int, **payload: Any) -> bytes:
        body = json.dumps(dict(payload, name=self.token.name, secret=self.token.secret.hex())).encode()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the name and the chain, and knows this authority alone
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=self.ca.decode("ascii"))
        return self._request(context, "POST", what, body, limit)

    def _request(self, context: ssl.SSLContext, verb: str, what: str, body: bytes, limit: int) -> bytes:
        connection = http.client.HTTPSConnection(self.token.address, self.token.port, timeout=CALL_SECONDS, context=context)
        try:
            connection.request(verb, f"/v1/grapevine/{what}", body, {"content-type": "application/json"})
            response = connection.getresponse()
            data = response.read(limit + 1)
        except ssl.SSLCertVerificationError as error:
            raise Mistake(
                f"{self.place} could not prove its identity ({error.verify_message}): check the invitation and the clock."
            ) from None
        except socket.gaierror:
            raise Unreachable(f"the name {self.token.address} cannot be resolved: check the network and DNS.") from None
        except TimeoutError:
            raise Unreachable(
                f"{self.place} does not answer within {CALL_SECONDS} s: is the port open in every firewall?"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.place} cannot be reached ({_why(error)}): is `grapevine host` running there?") from None
        finally:
            connection.close()
        if len(data) > limit:
            raise Mistake(f"{self.place} sent more than {limit} bytes: check the address in the invitation.")
        if response.status != 200:
            raise Refused(response.status, _sentence(data, response.status, self.place))
        return data


class Unreachable(Later):
    """The host is not there now. It may be later."""


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _sentence(data: bytes, status: int, place: str) -> str:
    """The host's sentence, if there is one."""
    try:
        text = json.loads(data)["error"]
        if isinstance(text, str):
            return printable(text)
    except (ValueError, KeyError, TypeError):
        pass
    return f"{place} answered with status {status}: check the address in the invitation."


def short(hash: str) -> str:
    return " ".join(hash[:16].upper()[i : i + 4] for i in range(0, 16, 4)) + " …"
