"""Test vectors of the parts: hashes, contexts, keys, masks, packing, sharing, commitments, sealed shares."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

from tests.reference import aes, commitments, curves, hashing, setting, sharing
from tests.reference import vectors_mod_2b as vectors
from tests.reference.rounds import identity_seeds, setting_of
from tests.reference.setting import Numbers, Refused, Setting
from tests.reference.sharing import listed_bytes

Case = dict[str, Any]
WIDTHS = (1, 8, 12, 16, 20, 31, 32, 33, 62)
INVALID = {"error": "InvalidArgument"}

# [RFC 7748] section 5.2: two products, and the first iteration from 9. They come from elsewhere and check our formulas.
RFC_7748 = (
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
    (
        "0900000000000000000000000000000000000000000000000000000000000000",
        "0900000000000000000000000000000000000000000000000000000000000000",
        "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079",
    ),
)
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
LOW_ORDER = [u.to_bytes(32, "little") for u in (0, 1, *ORDER_8, curves.P - 1, curves.P, curves.P + 1)]
# The highest bit of a key is ignored: 0 and 1 with it are of low order all the same.
LOW_ORDER += [(u + 2**255).to_bytes(32, "little") for u in (0, 1)]


def setting_json(agreed: Setting) -> Case:
    """A setting as it stands in a vector."""
    return {
        "study": agreed.study,
        "roster_version": agreed.roster_version,
        "roster": [{"identity": identity, "host": host} for identity, host in agreed.roster],
        "round": agreed.round,
        "attempt": agreed.attempt,
        "study_digest": agreed.study_digest,
        "model_digest": agreed.model_digest,
        **vars(agreed.numbers),
    }


def decimal(values: list[int]) -> list[str]:
    """Values reach 2^62, which not every reader of JSON can hold as a number."""
    return [str(value) for value in values]


# ---------------------------------------------------------------- hashing.json


def hashing_vectors() -> Case:
    labelled = []
    for label, fields in (
        ("sordino/v1/example", ()),
        ("sordino/v1/example", (b"",)),
        ("sordino/v1/example", (b"", b"")),
        ("sordino/v1/example", (b"ab", b"c")),
        ("sordino/v1/example", (b"a", b"bc")),
        ("sordino/v1/longer-example", (listed_bytes("field", 300), hashing.u64(2**40 + 1))),
    ):
        encoded = hashing.labelled(label, *fields)
        labelled.append({"label": label, "fields": fields, "encoded": encoded, "sha256": sha256(encoded).digest()})
    derived = []
    given = {name: listed_bytes(name, size) for name, size in (("secret", 32), ("salt", 32), ("info", 50))}
    for length in (1, 16, 32):
        derived.append({**given, "length": length, "output": hashing.hkdf_sha256(length=length, **given)})
    return {"labelled": labelled, "hkdf_sha256": derived}


# ---------------------------------------------------------------- contexts.json


def context_vectors() -> Case:
    base = setting_of(5, bits=20, dim=1000, quorum=5)
    identities = [identity for identity, _ in base.roster]
    other_host = ((identities[0], "elsewhere"), *base.roster[1:])
    settings = {
        "as it is": base,
        "another study": replace(base, study="test-vectorS"),
        "another roster version": replace(base, roster_version=4),
        "another host on the roster": replace(base, roster=other_host),
        "another round": replace(base, round=8),
        "another attempt": replace(base, attempt=3),
        "another study document": replace(base, study_digest=listed_bytes("other study document", 32)),
        "another model": replace(base, model_digest=listed_bytes("other model", 32)),
        "other numbers": replace(base, numbers=replace(base.numbers, quorum=4, dim=1001)),
    }
    round_contexts = [
        {
            "name": name,
            "setting": setting_json(one),
            "numbers": one.numbers.encoded(),
            "roster_digest": setting.roster_digest(one.study, one.roster_version, one.roster),
            "round_context": one.round_context(),
        }
        for name, one in settings.items()
    ]
    assert len({case["round_context"] for case in round_contexts}) == len(settings)

    context = base.round_context()
    adverts = [[listed_bytes(f"{name} {i}", size) for name, size in ADVERTISED] for i in range(5)]
    digests = [setting.advertisement_digest(*advert) for advert in adverts]
    cohorts = []
    for members in ((0, 1, 2, 3, 4), (0, 1, 2, 4), (4,)):
        listed = [{"identity": identities[i], "advertisement_digest": digests[i]} for i in members]
        pairs = [(identities[i], digests[i]) for i in members]
        cohorts.append({"members": listed, "cohort_context": setting.cohort_context(context, pairs)})
    signatures = [(who, listed_bytes(f"signature {who}", 64)) for who in (0, 2, 300)]
    return {
        "round_contexts": round_contexts,
        "advertisements": [
            {**{name: part for (name, _), part in zip(ADVERTISED, advert, strict=True)}, "digest": digest}
            for advert, digest in zip(adverts, digests, strict=True)
        ],
        "cohort_contexts": [{"round_context": context, **cohort} for cohort in cohorts],
        "sets": [
            {
                "name": name,
                "cohort_context": context,
                "identities": identities[:count],
                "digest": setting.set_digest(name, context, identities[:count]),
            }
            for name in ("u2", "u3")
            for count in (1, 5)
        ],
        "unmasking_request": {
            "signatures": [{"participant": who, "signature": signature} for who, signature in signatures],
            "digest": setting.request_digest(signatures),
        },
        "numbers": [number_case(*values) for values in NUMBERS],
    }


ADVERTISED = (("mask_key", 32), ("channel_key", 32), ("signature", 64))
# cohort, colluders, min_survivors, quorum, bits, dim
NUMBERS = (
    (3, 0, 3, 3, 1, 1),
    (3, 2, 3, 3, 62, 1),
    (10, 3, 7, 8, 20, 10**6),
    (63, 0, 33, 40, 32, 1),
    (64, 0, 33, 40, 32, 1),
    (100, 5, 56, 56, 20, 10**6),
    (65520, 3276, 40000, 45000, 16, 1),
    (100, 5, 52, 56, 20, 10**6),  # min_survivors below the threshold
    (2, 0, 2, 2, 20, 1),  # a threshold that two can't meet
    (10, 3, 8, 7, 20, 1),  # quorum below min_survivors
    (10, 3, 8, 11, 20, 1),  # quorum above the cohort
    (10, 10, 10, 10, 20, 1),  # everybody colludes
    (65521, 0, 40000, 40000, 20, 1),  # no points for so many holders
    (10, 2, 7, 7, 0, 1),
    (10, 2, 7, 7, 63, 1),
    (10, 2, 7, 7, 20, 0),
    (10, 2, 7, 7, 62, (2**32 - 2) * 2),  # the longest stream
    (10, 2, 7, 7, 62, (2**32 - 2) * 2 + 1),  # longer
)


def number_case(*values: int) -> Case:
    """Threshold and signatures for some sizes of u1, or a refusal."""
    given = dict(zip(("cohort", "colluders", "min_survivors", "quorum", "bits", "dim"), values, strict=True))
    try:
        numbers = Numbers(**given)
    except Refused as refusal:
        return {**given, "refused": refusal.stated()}
    sizes = sorted({numbers.quorum, (numbers.quorum + numbers.cohort) // 2, numbers.cohort})
    return {**given, "thresholds": [{"u1": size, "threshold": numbers.threshold(size)} for size in sizes]}


# ---------------------------------------------------------------- keys.json


def key_vectors() -> Case:
    agreements: list[Case] = []
    for scalar, u in (
        *((bytes.fromhex(scalar), bytes.fromhex(u)) for scalar, u, _ in RFC_7748),
        (listed_bytes("scalar", 32), curves.x25519_public(listed_bytes("other scalar", 32))),
        (listed_bytes("scalar", 32), (2**255 + 9).to_bytes(32, "little")),  # the highest bit is ignored
        (listed_bytes("scalar", 32), (curves.P + 9).to_bytes(32, "little")),  # not reduced: 9 as well
    ):
        agreements.append({"private": scalar, "public": u, "shared": curves.agreement(scalar, u)})
    assert [case["shared"].hex() for case in agreements[: len(RFC_7748)]] == [shared for _, _, shared in RFC_7748]
    low = [*LOW_ORDER, listed_bytes("short", 31), listed_bytes("long", 33)]
    refused = [{"public": u, "refused": {"error": "InvalidKey"}} for u in low]
    assert all(curves.agreement(listed_bytes("scalar", 32), u) is None for u in low)

    round_context, context = listed_bytes("round context", 32), listed_bytes("cohort context", 32)
    seeds = identity_seeds(2)
    alice, bob = map(curves.ed25519_public, seeds)
    keys = [listed_bytes(f"public key {i}", 32) for i in range(2)]
    symbols = [0, 1, 255, 256, 65520, *sharing.random_symbols(11, sharing.Stream(listed_bytes("symbols", 40)))]
    secret = sharing.symbol_bytes(symbols)
    seed, shared = setting.self_mask_seed(secret, context, alice), listed_bytes("shared", 32)
    masks = []
    for bits, dim, vector in ((20, 1000, "input"), (21, 1000, "input"), (20, 1001, "input"), (20, 1000, "other")):
        pairwise = setting.pairwise_mask_key(shared, (alice, keys[0]), (bob, keys[1]), bits, dim, context, vector)
        own = setting.self_mask_key(seed, alice, bits, dim, context, vector)
        masks.append({"bits": bits, "dim": dim, "vector": vector, "pairwise_mask_key": pairwise, "self_mask_key": own})
    public = {
        "round_context": round_context,
        "cohort_context": context,
        "low": {"identity": alice, "mask_key": keys[0]},
        "high": {"identity": bob, "mask_key": keys[1]},
        "symbols": symbols,
        "shared": shared,
    }
    nonces = listed_bytes("client nonce", 32), listed_bytes("server nonce", 32)
    digests = [listed_bytes(f"digest {i}", 32) for i in range(2)]
    statements = {
        "session": setting.session_statement("test-vectors", alice, *nonces),
        "advertisement": setting.advertisement_statement(round_context, alice, *keys),
        "dealing": setting.dealing_statement(context, alice, *digests),
        "upload": setting.upload_statement(context, alice, digests[0]),
        "survivors": setting.survivor_statement(context, [alice, bob], [bob]),
    }
    fields = {
        "session": {"study": "test-vectors", "identity": alice, "client_nonce": nonces[0], "server_nonce": nonces[1]},
        "advertisement": {
            "round_context": round_context,
            "identity": alice,
            "mask_key": keys[0],
            "channel_key": keys[1],
        },
        "dealing": {
            "cohort_context": context,
            "identity": alice,
            "root": digests[0],
            "seed_commitment": digests[1],
        },
        "upload": {"cohort_context": context, "identity": alice, "sha256": digests[0]},
        "survivors": {"cohort_context": context, "u2": [alice, bob], "u3": [bob]},
    }
    signed = [
        {
            "kind": kind,
            **fields[kind],
            "statement": statement,
            "identity_private": seeds[0],
            "signature": curves.ed25519_sign(seeds[0], statement),
        }
        for kind, statement in statements.items()
    ]
    good = curves.ed25519_sign(seeds[0], statements["upload"])
    wrong = (
        ("a bit of the signature changed", alice, flip(good, 33), statements["upload"]),
        ("another statement", alice, good, statements["dealing"]),
        ("somebody else's key", bob, good, statements["upload"]),
        ("one byte too short", alice, good[:-1], statements["upload"]),
        ("one byte too long", alice, good + b"\0", statements["upload"]),
        ("s not reduced", alice, good[:32] + unreduced(good[32:]), statements["upload"]),
    )
    assert not any(curves.ed25519_valid(key, signature, statement) for _, key, signature, statement in wrong)
    return {
        "x25519": agreements,
        "x25519_refused": refused,
        "derived": {
            **public,
            "mask_private_key": setting.mask_private_key(secret, round_context, alice),
            "self_mask_seed": seed,
            "seed_commitment": setting.seed_commitment(seed, context, alice),
            "masks": masks,
        },
        "signed": signed,
        "invalid_signatures": [
            {"name": name, "identity": key, "signature": signature, "statement": statement}
            for name, key, signature, statement in wrong
        ],
    }


def flip(data: bytes, at: int = 0) -> bytes:
    """One bit changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def unreduced(s: bytes) -> bytes:
    """The same scalar plus the order of the group: [RFC 8032] asks verifiers to refuse it."""
    order = 2**252 + 27742317777372353535851937790883648493
    return (int.from_bytes(s, "little") + order).to_bytes(32, "little")


# ---------------------------------------------------------------- masks.json


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
        sums.append(
            {
                "bits": bits,
                "values": decimal(vector),
                "masks": [{"key": key, "sign": sign} for key, sign in chosen],
                "masked": decimal(vectors.add_masks(vector, chosen, bits)),
            }
        )
    key = listed_bytes("refused mask", 16)
    refused = [
        {"name": "a key of 15 bytes", "key": key[:15], "bits": 20, "dim": 5, "refused": INVALID},
        {"name": "a key of 32 bytes", "key": key + key, "bits": 20, "dim": 5, "refused": INVALID},
        {"name": "0 bits", "key": key, "bits": 0, "dim": 5, "refused": INVALID},
        {"name": "63 bits", "key": key, "bits": 63, "dim": 5, "refused": INVALID},
        {"name": "too long for one stream", "key": key, "bits": 62, "dim": (2**32 - 2) * 2 + 1, "refused": INVALID},
    ]
    return {"masks": masks, "long": long, "sums": sums, "refused": refused}


# ---------------------------------------------------------------- packing.json


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
    """The reference refuses what a vector says is refused."""
    try:
        function(*args)
    except ValueError:
        return
    raise AssertionError(f"{function.__name__} took what it should refuse")


# ---------------------------------------------------------------- shamir.json


def shamir_vectors() -> Case:
    drawn = []
    for name, data in (
        ("plain", listed_bytes("plain symbols", 8)),
        ("words from 65521 are skipped", bytes.fromhex("f0ff f1ff ffff 0000 f2ff 0100 fffe")),
    ):
        drawn.append({"name": name, "randomness": data, "symbols": sharing.random_symbols(4, sharing.Stream(data))})
    splits = []
    for threshold, xs, length in ((2, (1, 2, 3), 1), (3, (1, 2, 3, 4, 5), 16), (4, (9, 2, 65520, 1), 32)):
        stream = sharing.Stream(b"\xff\xff" + listed_bytes(f"coefficients {threshold}", 300))
        secret = [0, 65520, *range(1, length)][:length] if length > 1 else [65520]
        shares = sharing.share(secret, threshold, xs, stream)
        assert sharing.rebuild(xs, shares, threshold) == secret
        splits.append(
            {"threshold": threshold, "xs": xs, "secret": secret, "randomness": stream.taken, "shares": shares}
        )
    shares = splits[1]["shares"]
    combined = []
    for rows in ((0, 1, 2), (4, 2, 0), (1, 3, 4, 0)):
        xs, given = [rows_x + 1 for rows_x in rows], [shares[row] for row in rows]
        combined.append({"threshold": 3, "xs": xs, "shares": given, "secret": sharing.rebuild(xs, given, 3)})
    changed = [[(shares[0][0] + 1) % sharing.P, *shares[0][1:]], *shares[1:3]]
    wrong = (("one symbol of a share changed", 3, changed), ("too low a threshold", 2, shares[:3]))
    for name, threshold, given in wrong:
        secret = sharing.rebuild([1, 2, 3], given, threshold)
        assert secret != splits[1]["secret"]
        combined.append({"name": name, "threshold": threshold, "xs": [1, 2, 3], "shares": given, "secret": secret})
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
    for name, threshold, xs, given in (
        ("fewer shares than the threshold", 3, [1, 2], shares[:2]),
        ("a point twice", 3, [1, 2, 2], shares[:3]),
        ("the point 0", 3, [0, 1, 2], shares[:3]),
        ("a symbol of 65521", 3, [1, 2, 3], [[65521] * 16, *shares[1:3]]),
        ("a threshold of 1", 1, [1, 2], shares[:2]),
    ):
        must_refuse(sharing.rebuild, xs, given, threshold)
        combine_refused.append({"name": name, "threshold": threshold, "xs": xs, "shares": given, "refused": INVALID})
    return {
        "random_symbols": drawn,
        "split": splits,
        "combine": combined,
        "split_refused": refused,
        "combine_refused": combine_refused,
    }


# ---------------------------------------------------------------- commitments.json


def commitment_vectors() -> Case:
    context, dealer, holder = (listed_bytes(name, 32) for name in ("cohort context", "dealer", "holder"))
    salt, other_salt = listed_bytes("salt", 16), listed_bytes("other salt", 16)
    share, other_share = ([*range(65505, 65521)], [*range(16)])
    leaves = []
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
        leaves.append(
            {
                "kind": commitments.KINDS[kind].decode(),
                "cohort_context": context,
                "dealer": ends[0],
                "holder": ends[1],
                "x": x,
                "salt": used_salt,
                "share": encoded,
                "leaf": leaf,
            }
        )
    pair = commitments.pair_node(leaves[0]["leaf"], leaves[1]["leaf"])
    trees, refused = [], []
    for count in (1, 2, 3, 4, 5, 6, 7, 9, 17):
        entries = [listed_bytes(f"entry {i}", 32) for i in range(count)]
        root, shown = commitments.root(entries), sorted({0, 1, count // 2, count - 2, count - 1} & set(range(count)))
        paths = [{"index": index, "path": commitments.path(entries, index)} for index in shown]
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


# ---------------------------------------------------------------- sealed_shares.json


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
        sealed.append(
            {
                "shared": shared,
                "cohort_context": context,
                "sender": {"identity": ends[sender][0], "channel_key": ends[sender][1]},
                "receiver": {"identity": ends[receiver][0], "channel_key": ends[receiver][1]},
                "key": key,
                "associated_data": associated,
                "plaintext": plaintext,
                "ciphertext": ciphertext,
            }
        )
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
