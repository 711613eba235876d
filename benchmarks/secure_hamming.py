"""The five SecureHamming protocols on one pair of clients: processor time of each side, bytes of each message, scaling.

    python benchmarks/secure_hamming.py [--quick] [--protocols mlwe psm]

At the paper's size, 500 × 500 rows of 4096 bits, and then at other numbers of rows and bits. Seconds are processor time of this
process with matrix products on one thread; bytes are those of the encoded messages. Every result is compared with `plain`, bit
for bit. The best of several runs counts, since others may use the machine. Results: secure_hamming.json beside this file, and the
tables of costs in docs/threat-model.md and docs/mlwe-parameters.md. With --protocols only these are measured, and the file keeps
what it has of the others.

Then the private spread (`product`) of five parties with 500 rows and 50 labels each, in the same run as their `mlwe` distances,
so that the ratio holds on any machine; and its bytes beside those of the paper's way, which sends dense columns of S. To measure
this part again without the others, say `--protocols plain`.

The paper's protocols *as written* (a ciphertext for every bit; an oblivious transfer for every bit of every pair of rows) are
not run: they would take hours to months. Their figures are extrapolated: single operations of our own code, without packing or
batching, are timed and multiplied by how many the protocol needs.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import ROOT, Stopwatch, about, fill, markdown, one_blas_thread, table, write

from grapevine import graph
from grapevine.core import wire
from grapevine.crypto import mlwe, naor_pinkas, ot, paillier, product, psm
from grapevine.crypto.agreement import Occasion
from grapevine.crypto.stream import Stream, context, fresh_secret

ROWS, BITS = 500, 4096
NAMES = ("plain", "psm", "mlwe", "paillier", "ot")
TARGETS = dict(psm=0.5, mlwe=8.0, paillier=45.0, ot=12.0)  # processor seconds of a pair, all sides
REPEATS = dict(plain=5, psm=5, mlwe=3, paillier=1, ot=2)
# Bytes that the design counts on, for one pair at the paper's size: by message as below
DESIGN_BYTES = dict(
    plain={"bits of j": 0.26e6, "bits of k": 0.26e6},
    psm={"U of j": 4.1e6, "U of k": 4.1e6, "a": 0.5e6, "b": 0.5e6},
    mlwe={"ciphertexts": 20.5e6, "reply": 8.2e6, "shares": 1.0e6},
    paillier={"ciphertexts": 9.4e6, "reply": 1.2e6, "shares": 1.2e6},
    ot={"tau": 1.66e9, "u": 33e6},
)
LABELS, COLUMNS = 50, (20, 60, 372)  # of a party; of the label matrix: ten classes twice, ten or 62 classes with six folds
Run = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, dict, dict]]


def size(message: dict) -> int:
    return len(wire.encode(message))


# ---------------------------------------------------------------- one pair; x and y are packed bits of j and k


def run_plain(x: np.ndarray, y: np.ndarray, L: int) -> tuple[np.ndarray, dict, dict]:
    watch = Stopwatch()
    H = watch("server", graph.hamming, x, y)
    return H, watch.seconds, {"bits of j": size(dict(bits=x)), "bits of k": size(dict(bits=y))}


def run_psm(x: np.ndarray, y: np.ndarray, L: int) -> tuple[np.ndarray, dict, dict]:
    watch, seed = Stopwatch(), fresh_secret()
    occasion = Occasion("benchmark", bytes(32), bytes(32), "psm", 0, 0, ("j", "k"))
    U = watch("j", psm.share, seed, occasion, "j", x, L)
    V = watch("k", psm.share, seed, occasion, "k", y, L)
    a = watch("j", psm.pair_message_a, seed, occasion, "j", "k", x, len(y), L)
    b = watch("k", psm.pair_message_b, seed, occasion, "k", "j", y, len(x), L)
    H = watch("server", psm.combine, U, V, a, b)
    return H, watch.seconds, {"U of j": size(dict(u=U)), "U of k": size(dict(u=V)), "a": size(dict(a=a)), "b": size(dict(b=b))}


def run_mlwe(x: np.ndarray, y: np.ndarray, L: int) -> tuple[np.ndarray, dict, dict]:
    watch, params = Stopwatch(), mlwe.Params(L)
    secret, message = watch("j encrypts", mlwe.encrypt, params, np.unpackbits(x, axis=1, count=L))
    reply, R = watch("k", mlwe.evaluate, params, message, np.unpackbits(y, axis=1, count=L))
    T = watch("j decrypts", mlwe.decrypt, secret, reply, len(y))
    H = watch("server", mlwe.combine, params, T, R)
    return H, watch.seconds, {"ciphertexts": size(message), "reply": size(reply), "shares": size(T) + size(R)}


def run_paillier(x: np.ndarray, y: np.ndarray, L: int) -> tuple[np.ndarray, dict, dict]:
    watch = Stopwatch()
    key = watch("j makes a key", paillier.make_key)
    message = watch("j encrypts", paillier.encrypt_columns, key, np.unpackbits(x, axis=1, count=L))
    reply, R = watch("k", paillier.answer, message, np.unpackbits(y, axis=1, count=L))
    T = watch("j decrypts", paillier.open_answer, key, reply, len(x), L, len(y))
    H = watch("server", paillier.distances, T, R, len(x), len(y), L)
    return H, watch.seconds, {"ciphertexts": size(message), "reply": size(reply), "shares": size(T) + size(R)}


def run_ot(x: np.ndarray, y: np.ndarray, L: int) -> tuple[np.ndarray, dict, dict]:
    watch, sent = Stopwatch(), {"base": 0, "u": 0, "tau": 0, "shares": 0}
    info, delta = b"benchmark", ot.fresh_delta()
    r, offer = watch("base transfers", naor_pinkas.offer)
    known, chosen = watch("base transfers", naor_pinkas.choose, offer, ot.delta_bits(delta), info)
    both = watch("base transfers", naor_pinkas.both_keys, r, offer, chosen, info)
    sent["base"] += size(offer) + size(chosen)
    j = ot.Sender(np.unpackbits(x, axis=1, count=L), len(y), info, delta, known)
    k = ot.Receiver(np.unpackbits(y, axis=1, count=L), len(x), info, both)
    for chunk in range(j.plan.chunks):
        request = watch("k", k.request, chunk)
        transfer = watch("j", j.transfer, request)
        watch("k", k.receive, transfer)
        sent["u"] += size(request)
        sent["tau"] += size(transfer)
    J, K = watch("j", j.share), watch("k", k.share)
    sent["shares"] = size(J) + size(K)
    return watch("server", ot.distances, J, K, len(x), len(y), L), watch.seconds, sent


RUNS: dict[str, Run] = dict(plain=run_plain, psm=run_psm, mlwe=run_mlwe, paillier=run_paillier, ot=run_ot)


def checked(name: str, x: np.ndarray, y: np.ndarray, L: int) -> tuple[dict, dict]:
    """Seconds and bytes of one run, whose distances must be those of `plain`."""
    H, seconds, sent = RUNS[name](x, y, L)
    if not np.array_equal(H, graph.hamming(x, y)):
        raise SystemExit(f"{name} gave other distances than plain for {len(x)} x {len(y)} rows of {L} bits")
    return seconds, sent


def pair(name: str, n: int, L: int, repeats: int) -> dict:
    """The best of several runs on random bits, checked against `plain`."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (2, n, L), np.uint8)
    y[0], y[-1] = x[0], 1 - x[-1]  # distances 0 and L
    x, y = np.packbits(x, axis=1), np.packbits(y, axis=1)
    best = None
    for _ in range(repeats):
        gc.collect()
        seconds, sent = checked(name, x, y, L)
        if best is None or sum(seconds.values()) < sum(best.values()):
            best = seconds
    return dict(protocol=name, rows=n, bits=L, cpu_seconds=round(sum(best.values()), 4),
                sides={side: round(t, 4) for side, t in best.items()}, bytes=sent)  # fmt: skip


# ---------------------------------------------------------------- the paper's protocols as written


def as_written(n: int, L: int, key_bits: int, count: int) -> list[dict]:
    """Extrapolated from single operations: see the head of this file."""
    pairs = n * n
    return [phe_as_written(n, L, pairs, key_bits, count), *ot_as_written(n, L, pairs, count)]


def phe_as_written(n: int, L: int, pairs: int, key_bits: int, count: int) -> dict:
    """A ciphertext for every bit of j. For every pair of rows: a sum of L ciphertexts, a mask, a decryption."""
    watch = Stopwatch()
    key = paillier.make_key(key_bits, toy=key_bits < 2048)
    watch("table", key.encrypt, [])  # of powers of the base, once for all
    ciphers = watch("encrypt", key.encrypt, [0, 1] * count)
    public = key.public

    def add() -> int:
        product = ciphers[0]
        for _ in range(100):
            for c in ciphers[:20]:
                product = product * c % public.n2
        return product

    watch("add", add)
    watch("decrypt", key.decrypt, ciphers)
    t = watch.seconds
    one = dict(encrypt=max(t["encrypt"] - t["table"], 0.0) / (2 * count), add=t["add"] / (100 * len(ciphers[:20])),
               decrypt=t["decrypt"] / (2 * count))  # fmt: skip
    # A bit of k that is 1 takes the inverse of a ciphertext: one inversion a ciphertext, left out here.
    operations = dict(encrypt=n * L + pairs, add=pairs * (L + 1), decrypt=pairs)
    hours = sum(one[name] * operations[name] for name in one) / 3600
    ciphertext = key_bits // 4
    return dict(
        protocol=f"PHE, {key_bits} bit",
        one_operation_seconds={name: float(f"{t:.3g}") for name, t in one.items()},
        operations=operations,
        cpu_hours=round(hours, 2),
        bytes=(n * L + pairs) * ciphertext + pairs * ciphertext,  # columns and answers; T and R for the server
    )


def ot_as_written(n: int, L: int, pairs: int, count: int) -> list[dict]:
    """A transfer for every bit of every pair of rows: each a base transfer, or extended from 128 of them (IKNP)."""
    rng = np.random.default_rng(0)
    x, y = (np.packbits(rng.integers(0, 2, (rows, L), np.uint8), axis=1) for rows in (1, count))
    seconds, sent = checked("ot", x, y, L)  # with one row of j, a transfer serves one bit of one pair
    base, extended = seconds["base transfers"] / ot.SECURITY, (seconds["j"] + seconds["k"]) / (count * L)
    transfers = pairs * L
    value = 2 * -(-L.bit_length() // 8)  # two masked values modulo t
    return [
        dict(protocol="OT, base transfers", one_operation_seconds=dict(transfer=float(f"{base:.3g}")),
             operations=dict(transfer=transfers), cpu_hours=round(base * transfers / 3600, 2),
             bytes=transfers * (ot.ELEMENT + value)),
        dict(protocol="OT, extended (IKNP)", one_operation_seconds=dict(transfer=float(f"{extended:.3g}")),
             operations=dict(transfer=transfers), cpu_hours=round(extended * transfers / 3600, 3),
             bytes=transfers * (sent["u"] + sent["tau"]) // (count * L)),
    ]  # fmt: skip


# ---------------------------------------------------------------- five parties: distances, and the private spread


def all_distances(parties: int, n: int, L: int) -> float:
    """Processor seconds of all pairs' mlwe distances, as XCLP computes them: one seed, and u once for all partners of a party."""
    rng, watch, params, seed = np.random.default_rng(0), Stopwatch(), mlwe.Params(L), fresh_secret()
    bits = rng.integers(0, 2, (parties, n, L), np.uint8)
    made = [watch("j encrypts", mlwe.encrypt, params, rows, seed) for rows in bits]
    for k in range(parties):
        mine = {str(j): made[j][1] for j in range(parties) if j != k and (k - j) % parties <= parties // 2}
        replies, shares = watch("k", mlwe.evaluate_all, params, mine, bits[k])
        for j in mine:
            T = watch("j decrypts", mlwe.decrypt, made[int(j)][0], replies[j], n)
            H = watch("server", mlwe.combine, params, T, shares[j])
            if H[0, 0] != (bits[int(j), 0] != bits[k, 0]).sum():
                raise SystemExit("mlwe gave another distance than plain")
    return sum(watch.seconds.values())


def spread(parties: int, n: int, labels: int, columns: int) -> dict:
    """The private spread of one graph: processor seconds of all sides, and a party's bytes up and down beside the paper's way."""
    rng, watch, public = np.random.default_rng(0), Stopwatch(), fresh_secret()
    s, stream = product.secret_key(fresh_secret(), b"benchmark"), Stream(fresh_secret(), context("benchmark"))
    Y = {str(i): rng.integers(0, 2, (labels, columns)) for i in range(parties)}
    bodies = {name: watch("encrypt", product.encrypt, public, name, s, y, stream) for name, y in Y.items()}
    sealed = watch("server", product.unpacked, public, bodies)
    for _ in range(parties):
        key = watch("encrypt", product.public_key, public, s, stream)
        S = product.scaled(rng.random((n, parties * labels)) ** 8)
        u, v = watch("server", product.evaluate, public, sealed, key, S, columns, stream)
        Z = watch("decrypt", product.decrypt, s, u, v, n, columns)
        if not np.array_equal(Z, S @ np.concatenate(list(Y.values()))):
            raise SystemExit(f"the private spread of {columns} columns is not the plain product")
    private = dict(up=size(dict(blocks={0: bodies["0"]}, key=key, public=public)), down=size(dict(u=u, v=v)))
    # The paper's way: columns of S down, masked contributions to all others' rows up, the others' sum on a party's own rows down.
    others = size(dict(rows=np.zeros(((parties - 1) * n, columns), np.uint64)))
    dense = (
        size(dict(columns={0: np.zeros((parties * n, labels), np.float32)})),
        size(dict(rows=np.zeros((n, columns), np.uint64))),
    )
    return dict(columns=columns, cpu_seconds=sum(watch.seconds.values()), private=private, paper=dict(up=others, down=sum(dense)))


def five_parties(parties: int, n: int, L: int, labels: int, repeats: int = 3) -> dict:
    """The best of several runs."""
    distances = min(all_distances(parties, n, L) for _ in range(repeats))
    runs = ([spread(parties, n, labels, columns) for _ in range(repeats)] for columns in COLUMNS)
    rows = [min(each, key=lambda run: run["cpu_seconds"]) for each in runs]
    for row in rows:
        row["of_distances"] = round(row["cpu_seconds"] / distances, 3)
        row["cpu_seconds"] = round(row["cpu_seconds"], 3)
        print(f"spread of {row['columns']} columns: {row['cpu_seconds']:.2f} CPU-s, {row['of_distances']:.3f} of the distances'; "
              f"bytes of a party {row['private']}, by the paper's way {row['paper']}")  # fmt: skip
    print(f"mlwe distances of {parties} parties with {n} rows of {L} bits: {distances:.2f} CPU-s")
    return dict(parties=parties, rows=n, bits=L, labels=labels, mlwe_cpu_seconds=round(distances, 3), spread=rows)


# ---------------------------------------------------------------- the report


def compare_bytes(row: dict) -> dict[str, float]:
    """Bytes of each message that the design names, as a ratio to what it counts on."""
    return {what: round(row["bytes"][what] / wanted, 3) for what, wanted in DESIGN_BYTES[row["protocol"]].items()}


def show_pairs(rows: list[dict]) -> None:
    plain = next(row["cpu_seconds"] for row in rows if row["protocol"] == "plain")
    lines = []
    for row in rows:
        row["times_plain"] = round(row["cpu_seconds"] / plain, 1)
        sides = ", ".join(f"{side} {t:.2f}" for side, t in row["sides"].items())
        megabytes = ", ".join(f"{what} {b / 1e6:.2f}" for what, b in row["bytes"].items())
        lines.append((row["protocol"], row["cpu_seconds"], row["times_plain"], sides, megabytes))
    print(table(("protocol", "CPU-s", "times plain", "CPU-s by side", "MB by message"), lines))


def show_targets(rows: list[dict]) -> None:
    for row in rows:
        row["bytes_to_design"] = compare_bytes(row)
        if row["protocol"] in TARGETS:
            row["target_seconds"] = TARGETS[row["protocol"]]
            row["met"] = row["cpu_seconds"] <= row["target_seconds"]
        near = all(abs(ratio - 1) <= 0.1 for ratio in row["bytes_to_design"].values())
        row["bytes_met"] = near
        seconds = f"{row['cpu_seconds']:.2f} of {row['target_seconds']:g} CPU-s" if "target_seconds" in row else "no target"
        verdict = "met" if row.get("met", True) and near else "MISSED"
        print(f"  {row['protocol']:9} {seconds:22} bytes {'within' if near else 'NOT within'} 10 % of the design: {verdict}")


def show_scaling(rows: list[dict]) -> None:
    lines = [(f"{row['protocol']} {row['rows']} x {row['rows']} x {row['bits']}", row["cpu_seconds"],
              sum(row["bytes"].values()) / 1e6) for row in rows]  # fmt: skip
    print(table(("scaling", "CPU-s", "MB"), lines))


def show_written(rows: list[dict], n: int, L: int) -> None:
    print(f"the paper's protocols as written, {n} x {n} x {L}: EXTRAPOLATED from single operations, not run")
    lines = [(row["protocol"], row["cpu_hours"], row["bytes"] / 1e9, ", ".join(
        f"{name} {t * 1e6:.3g}" for name, t in row["one_operation_seconds"].items())) for row in rows]  # fmt: skip
    print(table(("protocol", "CPU-hours", "GB", "CPU-microseconds of one operation"), lines))


def document(result: dict, root: Path = ROOT) -> None:
    pairs = {each["protocol"]: each for each in result["pair"]}
    rows = [
        (f"`{name}`", f"{each['cpu_seconds']:.2g}", f"{sum(each['bytes'].values()) / 1e6:.1f}") for name, each in pairs.items()
    ]
    fill(root / "docs" / "threat-model.md", "secure_hamming.py", markdown(("protocol", "CPU-seconds", "MB"), rows))
    sides, sent = pairs["mlwe"]["sides"], pairs["mlwe"]["bytes"]
    steps = (("encrypt, once for all partners", "j encrypts", f"{sent['ciphertexts']:,} to k"),
             ("evaluate", "k", f"{sent['reply']:,} back"),
             ("decrypt", "j decrypts", ""),
             ("combine", "server", f"{sent['shares']:,} to the server, from both"))  # fmt: skip
    rows = [(name, f"{sides[side]:.2f}", text) for name, side, text in steps]
    page = root / "docs" / "mlwe-parameters.md"
    fill(page, "secure_hamming.py", markdown(("", "CPU-seconds", "bytes"), rows))
    head = ("columns of labels", "CPU-seconds", "of the distances'", "MB up, down", "MB up, down by the paper's way")
    fill(page, "secure_hamming.py, spread", markdown(head, [_spread_row(row) for row in result["five_parties"]["spread"]]))


def _spread_row(row: dict) -> tuple:
    bytes_ = (", ".join(f"{row[way][side] / 1e6:.2f}" for side in ("up", "down")) for way in ("private", "paper"))
    return row["columns"], f"{row['cpu_seconds']:.2f}", f"{100 * row['of_distances']:.0f} %", *bytes_


def scaling(names: list[str], n: int, L: int) -> list[dict]:
    rows = []
    for name in names:
        dear = name in ("paillier", "ot")
        sizes = [(count, L) for count in ((125, 250) if dear else (125, 250, 1000, 2000))]
        sizes += [(n, bits) for bits in ((1024, 2048) if dear else (1024, 2048, 8192, 16384))]
        rows += [pair(name, *size, 1) for size in sizes]
    return rows


def quick_run() -> None:
    n, L = 6, 64
    pair("plain", 8, 64, 1)  # compiles and loads what there is to load
    # The quick run has its oblivious transfer in `as_written`: one time 128 base transfers are enough to wait for.
    show_pairs([pair(name, n, L, 1) for name in NAMES if name != "ot"])
    five_parties(3, n, L, 2, 1)
    show_written(as_written(n, L, 512, 2), n, L)


def kept(result: dict, names: list[str]) -> dict:
    """What the file has of the protocols that were not measured now."""
    if len(names) == len(NAMES):
        return dict(pair=[], scaling=[])
    old = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    result["as_written_extrapolated"] = old["as_written_extrapolated"]
    return {part: [row for row in old[part] if row["protocol"] not in names] for part in ("pair", "scaling")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that it runs; nothing is written")
    parser.add_argument("--protocols", nargs="+", default=list(NAMES), choices=NAMES, help="measure these only")
    given = parser.parse_args()
    n, L, names = ROWS, BITS, [name for name in NAMES if name in given.protocols]
    with one_blas_thread():
        if given.quick:
            quick_run()
            return
        for name in names:
            pair(name, 8, 64, 1)  # compiles and loads what there is to load
        result: dict = dict(machine=about())
        others = kept(result, names)
        order = {name: i for i, name in enumerate(NAMES)}
        result["pair"] = [pair(name, n, L, REPEATS[name]) for name in names] + others["pair"]
        result["pair"].sort(key=lambda row: order[row["protocol"]])
        show_pairs(result["pair"])
        show_targets(result["pair"])
        result["scaling"] = scaling(names, n, L) + others["scaling"]
        result["scaling"].sort(key=lambda row: order[row["protocol"]])
        show_scaling(result["scaling"])
        result["five_parties"] = five_parties(5, n, L, LABELS)
        if len(names) == len(NAMES):
            result["as_written_extrapolated"] = as_written(n, L, 3072, 50)
        show_written(result["as_written_extrapolated"], n, L)
    write(__file__, result)
    document(result)


if __name__ == "__main__":
    main()
