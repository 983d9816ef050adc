"""Test vectors of masks, packed vectors, shared secrets, commitments and sealed shares."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from tests.reference import aes, commitments, setting, sharing, vectors_mod_2b as vectors
from tests.reference.primitive_vectors import Case, flip
from tests.reference.sharing import listed_bytes

WIDTHS = (1, 8, 12, 16, 20, 31, 32, 33, 62)
INVALID = {"error": "InvalidArgument"}


def decimal(values: list[int]) -> list[str]:
    """Values reach 2^62, which not every reader of JSON can hold as a number."""
    return [str(value) for value in values]


def mask_vectors() -> Case:
    masks = []
    for bits in (*WIDTHS, 2, 7, 9, 17, 24, 61):
        key = listed_bytes(f"mask of {bits} bits", 16)
        masks.append({"key": key, "bits": bits, "dim": 19, "mask": decimal(vectors.mask(key, 19, bits))})
    # Long enough for a stream to go on from one chunk of an implementation to the next: 280 KB of keystream.
    long = []
    for bits, dim in ((20, 70_001), (33, 35_001)):
        key = listed_bytes(f"long mask of {bits} bits", 16)
        words = b"".join(w.to_bytes(vectors.word_bytes(bits), "little") for w in vectors.mask(key, dim, bits))
        long.append({"key": key, "bits": bits, "dim": dim, "sha256_of_words": sha256(words).digest()})
    sums = []
    for bits in WIDTHS:
        vector = [2**bits - 1, 0, 1 % 2**bits, *(i * 0x9E3779B97F4A7C15 % 2**bits for i in range(10))]
        chosen = [(listed_bytes(f"summed mask {bits} {i}", 16), sign) for i, sign in enumerate((1, 1, -1, 1, -1, -1))]
        masked = decimal(vectors.add_masks(vector, chosen, bits))
        masks_of = [{"key": key, "sign": sign} for key, sign in chosen]
        sums.append({"bits": bits, "values": decimal(vector), "masks": masks_of, "masked": masked})
    key = listed_bytes("refused mask", 16)
    refused = [
        {"name": name, "key": key, "bits": bits, "dim": dim, "refused": INVALID}
        for name, key, bits, dim in (
            ("a key of 15 bytes", key[:15], 20, 5),
            ("a key of 32 bytes", key + key, 20, 5),
            ("0 bits", key, 0, 5),
            ("63 bits", key, 63, 5),
            ("too long for one stream", key, 62, (2**32 - 2) * 2 + 1),
        )
    ]
    return {"masks": masks, "long": long, "sums": sums, "refused": refused}


def packing_vectors() -> Case:
    cases = []
    for bits in (*WIDTHS, 3, 24, 61):
        for dim in (0, 1, 7, 8, 37, 67) if bits in (12, 20, 33) else (1, 67):
            drawn = listed_bytes(f"packed values {bits} {dim}", 8 * dim)
            values = [int.from_bytes(drawn[8 * i : 8 * i + 8], "little") % 2**bits for i in range(dim)]
            packed = vectors.pack(values, bits)
            assert vectors.unpack(packed, dim, bits) == values
            cases.append({"bits": bits, "dim": dim, "values": decimal(values), "packed": packed})
    refused: list[Case] = []
    for bits, dim in ((1, 9), (12, 9), (20, 3), (31, 33), (33, 65), (62, 5)):
        size = vectors.packed_bytes(dim, bits)
        spare = 8 * size - dim * bits
        good = bytes(size)
        for name, data in (
            ("one byte too short", good[:-1]),
            ("one byte too long", good + b"\0"),
            ("the lowest unused bit set", good[:-1] + bytes([1 << (8 - spare)])),
            ("the highest unused bit set", good[:-1] + b"\x80"),
        ):
            assert spare
            refused.append({"name": name, "bits": bits, "dim": dim, "packed": data, "refused": INVALID})
            must_refuse(vectors.unpack, data, dim, bits)
    narrow = [bits for bits in WIDTHS if bits not in (8, 16, 32)]  # else no word can hold a value that is too large
    too_large = [{"bits": bits, "values": decimal([0, 2**bits]), "refused": INVALID} for bits in narrow]
    return {"packed": cases, "unpack_refused": refused, "pack_refused": too_large}


def must_refuse(function: Any, *args: Any) -> None:
    try:
        function(*args)
    except ValueError:
        return
    raise AssertionError(f"{function.__name__} took what it should refuse")


def shamir_vectors() -> Case:
    drawn = []
    for name, data in (
        ("plain", listed_bytes("plain symbols", 8)),
        ("words from 65521 are skipped", bytes.fromhex("f0ff f1ff ffff 0000 f2ff 0100 fffe")),
    ):
        drawn.append({"name": name, "randomness": data, "symbols": sharing.random_symbols(4, sharing.Stream(data))})
    splits: list[Case] = []
    for threshold, xs, length in ((2, [1, 2, 3], 1), (3, [1, 2, 3, 4, 5], 16), (4, [9, 2, 65520, 1], 32)):
        stream = sharing.Stream(b"\xff\xff" + listed_bytes(f"coefficients {threshold}", 300))
        secret = [0, 65520, *range(1, length)][:length] if length > 1 else [65520]
        shares = sharing.share(secret, threshold, xs, stream)
        assert sharing.rebuild(xs, shares, threshold) == secret
        given: Case = {"threshold": threshold, "xs": xs, "secret": secret}
        splits.append({**given, "randomness": stream.taken, "shares": shares})
    shares = splits[1]["shares"]
    combined: list[Case] = []
    for rows in ((0, 1, 2), (4, 2, 0), (1, 3, 4, 0)):
        xs, used = [row + 1 for row in rows], [shares[row] for row in rows]
        combined.append({"threshold": 3, "xs": xs, "shares": used, "secret": sharing.rebuild(xs, used, 3)})
    changed = [[(shares[0][0] + 1) % sharing.P, *shares[0][1:]], *shares[1:3]]
    wrong = (("one symbol of a share changed", 3, changed), ("too low a threshold", 2, shares[:3]))
    for name, threshold, used in wrong:
        secret = sharing.rebuild([1, 2, 3], used, threshold)
        assert secret != splits[1]["secret"]
        combined.append({"name": name, "threshold": threshold, "xs": [1, 2, 3], "shares": used, "secret": secret})
    refused: list[Case] = []
    for name, threshold, xs, secret in (
        ("a threshold of 1", 1, [1, 2, 3], [5]),
        ("a threshold above the number of holders", 4, [1, 2, 3], [5]),
        ("a point twice", 2, [1, 2, 2], [5]),
        ("the point 0", 2, [0, 1, 2], [5]),
        ("the point 65521", 2, [1, 2, 65521], [5]),
        ("a symbol of 65521", 2, [1, 2, 3], [65521]),
        ("a symbol of 65535", 2, [1, 2, 3], [1, 65535]),
        ("no symbol", 2, [1, 2, 3], []),
    ):
        must_refuse(sharing.share, secret, threshold, xs, sharing.Stream(bytes(100)))
        refused.append({"name": name, "threshold": threshold, "xs": xs, "secret": secret, "refused": INVALID})
    combine_refused: list[Case] = []
    for name, threshold, xs, used in (
        ("fewer shares than the threshold", 3, [1, 2], shares[:2]),
        ("a point twice", 3, [1, 2, 2], shares[:3]),
        ("the point 0", 3, [0, 1, 2], shares[:3]),
        ("a symbol of 65521", 3, [1, 2, 3], [[65521] * 16, *shares[1:3]]),
        ("a threshold of 1", 1, [1, 2], shares[:2]),
    ):
        must_refuse(sharing.rebuild, xs, used, threshold)
        combine_refused.append({"name": name, "threshold": threshold, "xs": xs, "shares": used, "refused": INVALID})
    taken = {"random_symbols": drawn, "split": splits, "combine": combined}
    return {**taken, "split_refused": refused, "combine_refused": combine_refused}


def commitment_vectors() -> Case:
    context, dealer, holder = (listed_bytes(name, 32) for name in ("cohort context", "dealer", "holder"))
    salt, other_salt = listed_bytes("salt", 16), listed_bytes("other salt", 16)
    share, other_share = ([*range(65505, 65521)], [*range(16)])
    leaves: list[Case] = []
    for kind, ends, x, used_salt, used_share in (
        (0, (dealer, holder), 1, salt, share),
        (1, (dealer, holder), 1, salt, share),
        (0, (holder, dealer), 1, salt, share),
        (0, (dealer, holder), 65520, salt, share),
        (0, (dealer, holder), 1, other_salt, share),
        (0, (dealer, holder), 1, salt, other_share),
    ):
        encoded = sharing.symbol_bytes(used_share)
        leaf = commitments.share_leaf(commitments.KINDS[kind], context, *ends, x, used_salt, encoded)
        named = {"kind": commitments.KINDS[kind].decode(), "cohort_context": context}
        named |= {"dealer": ends[0], "holder": ends[1]}
        leaves.append({**named, "x": x, "salt": used_salt, "share": encoded, "leaf": leaf})
    pair = commitments.pair_node(leaves[0]["leaf"], leaves[1]["leaf"])
    trees: list[Case] = []
    refused: list[Case] = []
    for count in (1, 2, 3, 4, 5, 6, 7, 9, 17):
        entries = [listed_bytes(f"entry {i}", 32) for i in range(count)]
        root, shown = commitments.root(entries), sorted({0, 1, count // 2, count - 2, count - 1} & set(range(count)))
        paths: list[Case] = [{"index": index, "path": commitments.path(entries, index)} for index in shown]
        assert all(commitments.path_valid(root, entries[p["index"]], p["index"], count, p["path"]) for p in paths)
        trees.append({"entries": entries, "root": root, "paths": paths})
        if count in (5, 7):
            refused += wrong_paths(entries, root)
    return {
        "share_leaves": leaves,
        "pair_node": {"mask_leaf": leaves[0]["leaf"], "seed_leaf": leaves[1]["leaf"], "node": pair},
        "trees": trees,
        "invalid_paths": refused,
    }


def wrong_paths(entries: list[bytes], root: bytes) -> list[Case]:
    count, index = len(entries), 3
    path = commitments.path(entries, index)
    last = commitments.path(entries, count - 1)
    cases: list[Case] = []
    for name, entry, at, size, siblings, under in (
        ("another position", entries[index], index - 1, count, path, root),
        ("another entry", entries[index - 1], index, count, path, root),
        ("another number of entries", entries[index], index, count + 1, path, root),
        ("another root", entries[index], index, count, path, flip(root)),
        ("a sibling changed", entries[index], index, count, [flip(path[0], 31), *path[1:]], root),
        ("a sibling missing", entries[index], index, count, path[:-1], root),
        ("a sibling too many", entries[index], index, count, [*path, path[-1]], root),
        ("siblings in another order", entries[index], index, count, path[::-1], root),
        ("a sibling of 31 bytes", entries[index], index, count, [path[0][:-1], *path[1:]], root),
        ("the entry's length", entries[index] + b"\0", index, count, path, root),
        ("a position outside", entries[count - 1], count, count, last, root),
        ("an inner node as an entry", path[1], 1, 3, path[2:], root),
    ):
        assert not commitments.path_valid(under, entry, at, size, siblings), name
        cases.append({"name": name, "root": under, "entry": entry, "index": at, "count": size, "path": siblings})
    return cases


def sealed_share_vectors() -> Case:
    shared, context = listed_bytes("channel agreement", 32), listed_bytes("cohort context", 32)
    ends = [(listed_bytes(f"identity {i}", 32), listed_bytes(f"channel key {i}", 32)) for i in range(2)]
    plaintext = listed_bytes("salts and shares", 96)
    sealed = []
    for sender, receiver in ((0, 1), (1, 0)):
        key = setting.channel_key(shared, ends[sender], ends[receiver], context)
        associated = setting.sealed_share_associated_data(context, ends[sender][0], ends[receiver][0])
        ciphertext = aes.gcm_seal(key, plaintext, associated)
        assert aes.gcm_open(key, ciphertext, associated) == plaintext
        roles = {"sender": sender, "receiver": receiver}
        named = {role: dict(zip(("identity", "channel_key"), ends[end], strict=True)) for role, end in roles.items()}
        derived = {"key": key, "associated_data": associated, "plaintext": plaintext, "ciphertext": ciphertext}
        sealed.append({"shared": shared, "cohort_context": context, **named, **derived})
    good: Case = {name: sealed[0][name] for name in ("shared", "cohort_context", "sender", "receiver", "ciphertext")}
    text = good["ciphertext"]
    wrong = [
        {"name": "the first bit of the ciphertext changed", **good, "ciphertext": flip(text)},
        {"name": "the last bit of the tag changed", **good, "ciphertext": flip(text, 111)},
        {"name": "one byte too short", **good, "ciphertext": text[:-1]},
        {"name": "one byte too long", **good, "ciphertext": text + b"\0"},
        {"name": "shorter than a tag", **good, "ciphertext": text[:15]},
        {"name": "wrong context", **good, "cohort_context": flip(context)},
        {"name": "sender and receiver swapped", **good, "sender": good["receiver"], "receiver": good["sender"]},
        {"name": "another sender", **good, "sender": {**good["sender"], "identity": flip(ends[0][0])}},
        {"name": "another channel key", **good, "sender": {**good["sender"], "channel_key": flip(ends[0][1])}},
        {"name": "another agreement", **good, "shared": flip(shared)},
    ]
    for case in wrong:
        one, two = ((case[side]["identity"], case[side]["channel_key"]) for side in ("sender", "receiver"))
        key = setting.channel_key(case["shared"], one, two, case["cohort_context"])
        associated = setting.sealed_share_associated_data(case["cohort_context"], one[0], two[0])
        assert aes.gcm_open(key, case["ciphertext"], associated) is None, case["name"]
    return {"sealed": sealed, "does_not_open": wrong}
