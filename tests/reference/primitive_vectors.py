"""Test vectors of hashes, contexts, numbers, keys, statements and signatures."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

from tests.reference import curves, hashing, setting, sharing
from tests.reference.rounds import identity_seeds, setting_of
from tests.reference.setting import Numbers, Refused, Setting
from tests.reference.sharing import listed_bytes

Case = dict[str, Any]

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
    ("09" + 31 * "00", "09" + 31 * "00", "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"),
)
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
LOW_ORDER = [u.to_bytes(32, "little") for u in (0, 1, *ORDER_8, curves.P - 1, curves.P, curves.P + 1)]
# The highest bit of a key is ignored: 0 and 1 with it are of low order all the same.
LOW_ORDER += [(u + 2**255).to_bytes(32, "little") for u in (0, 1)]


def setting_json(agreed: Setting) -> Case:
    roster = [{"identity": identity, "host": host} for identity, host in agreed.roster]
    stated = {**vars(agreed), "roster": roster}
    stated |= numbers_json(stated.pop("numbers"))
    sharing = stated.pop("sharing")
    if sharing:  # degree and threshold, for rings too small for the rule
        stated["sharing"] = dict(zip(("degree", "threshold"), sharing, strict=True))
    return stated


def numbers_json(numbers: Numbers) -> Case:
    """Numbers without released noise don't state it."""
    return {name: value for name, value in vars(numbers).items() if name != "released" or value}


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


def context_vectors() -> Case:
    base = setting_of(5, bits=20, dim=1000, quorum=5)
    identities = [identity for identity, _ in base.roster]
    other_host = ((identities[0], "elsewhere"), *base.roster[1:])
    hybrid = replace(base.numbers, key_agreement="x25519-mlkem768", released=(0, 5))
    settings = {
        "as it is": base,
        "another study": replace(base, study="test-vectorS"),
        "another roster version": replace(base, roster_version=4),
        "another host on the roster": replace(base, roster=other_host),
        "another round": replace(base, round=8),
        "another attempt": replace(base, attempt=3),
        "another study document": replace(base, study_digest=listed_bytes("other study document", 32)),
        "another roster before": replace(base, previous_roster=listed_bytes("other previous roster", 32)),
        "another statement of the newest roster": replace(base, newest=bytes(32)),
        "another model": replace(base, model_digest=listed_bytes("other model", 32)),
        "other numbers": replace(base, numbers=replace(base.numbers, quorum=4, dim=1001)),
        "the other graph": replace(base, numbers=replace(base.numbers, graph="harary")),
        "another adversary": replace(base, numbers=replace(base.numbers, adversary="semi-malicious")),
        "noise to take back": replace(base, numbers=replace(base.numbers, released=(0, 5))),
        "other noise to take back": replace(base, numbers=replace(base.numbers, released=(1, 5))),
        "hybrid keys and noise to take back": replace(base, numbers=hybrid),
        "the weakest adversary": replace(base, numbers=replace(base.numbers, adversary="curious")),
    }
    round_contexts = []
    for name, one in settings.items():
        case = {"name": name, "setting": setting_json(one), "numbers": one.numbers.encoded()}
        round_contexts.append({**case, "roster_digest": one.roster_digest(), "round_context": one.round_context()})
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
    uploads = [(listed_bytes(f"upload {i}", 32), listed_bytes(f"signature of upload {i}", 64)) for i in range(2)]
    sets = {"u2": b"\xff\x03", "u3": b"\xfd\x01"}
    return {
        "round_contexts": round_contexts,
        "advertisements": [
            {**{name: part for (name, _), part in zip(ADVERTISED, advert, strict=True)}, "digest": digest}
            for advert, digest in zip(adverts, digests, strict=True)
        ],
        "cohort_contexts": [{"round_context": context, **cohort} for cohort in cohorts],
        "sets": [set_case(name, context, identities[:count]) for name in ("u2", "u3") for count in (1, 5)],
        "unmasking_requests": [
            {
                "signatures": [{"participant": who, "signature": signature} for who, signature in signatures],
                "uploads": [{"sha256": sha256, "signature": signature} for sha256, signature in shown],
                "digest": setting.request_digest(signatures, shown),
            }
            for shown in ([], uploads)
        ],
        "unsigned_unmasking_request": {**sets, "digest": setting.unsigned_request_digest(**sets)},
        "numbers": [number_case(*values) for values in NUMBERS],
    }


def set_case(name: str, context: bytes, identities: list[bytes]) -> Case:
    digest = setting.set_digest(name, context, identities)
    return {"name": name, "cohort_context": context, "identities": identities, "digest": digest}


ADVERTISED = (("mask_key", 32), ("channel_key", 32), ("signature", 64))
# cohort, colluders, min_survivors, quorum, bits, dim, released
NUMBERS: tuple[tuple[Any, ...], ...] = (
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
    (65521, 0, 40000, 40000, 20, 1),  # too few points for the holders
    (10, 2, 7, 7, 0, 1),
    (10, 2, 7, 7, 63, 1),
    (10, 2, 7, 7, 20, 0),
    (10, 2, 7, 7, 20, 1, (0, 1, 2, 2**16 - 1)),
    (10, 2, 7, 7, 20, 1, (0, 1, 2)),  # not for every size of u3
    (10, 2, 7, 7, 20, 1, (0, 1, 2, 3, 4)),  # for a larger one than there can be
    (10, 2, 7, 7, 20, 1, (0, 1, 2, 2**16)),  # a seventeenth seed
    (10, 2, 7, 7, 62, (2**32 - 2) * 2),  # the longest stream
    (10, 2, 7, 7, 62, (2**32 - 2) * 2 + 1),  # longer
)


def number_case(*values: Any) -> Case:
    """On the complete graph, threshold and signatures needed (the same number) for some sizes of u1; or a refusal."""
    names = ("cohort", "colluders", "min_survivors", "quorum", "bits", "dim", "released")
    given = dict(zip(names, values, strict=False))
    try:
        numbers = Numbers(**given)
    except Refused as refusal:
        return {**given, "refused": refusal.stated()}
    sizes = sorted({numbers.quorum, (numbers.quorum + numbers.cohort) // 2, numbers.cohort})
    return {**given, "thresholds": [{"u1": size, "threshold": numbers.majority(size)} for size in sizes]}


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
    ends = {"low": {"identity": alice, "mask_key": keys[0]}, "high": {"identity": bob, "mask_key": keys[1]}}
    public = {"round_context": round_context, "cohort_context": context, **ends, "symbols": symbols, "shared": shared}
    noise_seed = listed_bytes("noise seed", 32)
    nonces = listed_bytes("client nonce", 32), listed_bytes("server nonce", 32)
    digests = [listed_bytes(f"digest {i}", 32) for i in range(2)]
    advertised = {"round_context": round_context, "identity": alice, "mask_key": keys[0], "channel_key": keys[1]}
    dealt = {"cohort_context": context, "identity": alice, "root": digests[0], "seed_commitment": digests[1]}
    uploaded = {"cohort_context": context, "identity": alice, "sha256": digests[0], "u2": [alice, bob]}
    survived = {"cohort_context": context, "u2": [alice, bob], "u3": [bob]}
    session = {"study": "test-vectors", "identity": alice, "client_nonce": nonces[0], "server_nonce": nonces[1]}
    signed: list[Case] = []
    for kind, fields, statement in (
        ("session", session, setting.session_statement("test-vectors", alice, *nonces)),
        ("advertisement", advertised, setting.advertisement_statement(round_context, alice, *keys)),
        ("dealing", dealt, setting.dealing_statement(context, alice, *digests)),
        ("upload", uploaded, setting.upload_statement(context, alice, digests[0], [alice, bob])),
        ("survivors", survived, setting.survivor_statement(context, [alice, bob], [bob])),
    ):
        signature = curves.ed25519_sign(seeds[0], statement)
        secret_of = {"identity_private": seeds[0], "signature": signature}
        signed.append({"kind": kind, **fields, "statement": statement, **secret_of})
    statements = {case["kind"]: case["statement"] for case in signed}
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
            "noise_seed": noise_seed,
            "noise_commitments": [
                {"part": part, "commitment": setting.noise_commitment(noise_seed, part, context, alice)}
                for part in (0, 15)
            ],
            "masks": masks,
        },
        "signed": signed,
        "invalid_signatures": [
            {"name": name, "identity": key, "signature": signature, "statement": statement}
            for name, key, signature, statement in wrong
        ],
    }


def flip(data: bytes, at: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def unreduced(s: bytes) -> bytes:
    """The same scalar plus the order of the group: [RFC 8032] asks verifiers to refuse it."""
    order = 2**252 + 27742317777372353535851937790883648493
    return (int.from_bytes(s, "little") + order).to_bytes(32, "little")
