"""The core meets the reference's vectors: every one byte for byte (refusals: test_vector_refusals.py).

The reference (tests/reference/) is slow and plain and shares nothing with the core; docs/test_vectors.md describes the
files that it writes.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import commitments, context, keys, masking, packing, shamir
from secagg.graph import HararyGraph
from secagg.messages import SurvivorSets, request_digest
from secagg.parameters import RoundParameters
from secagg.sharing import Sharing
from secagg.signatures import verify_signature
from tests.reference import write_vectors
from tests.reference.setting import Refused
from tests.reference.sharing import Stream
from tests.reference.vectors_mod_2b import add_vectors
from tests.secagg.fast_sides import FastCoordinator, FastParticipant, config_of, read_advertisement, read_request
from tests.secagg.vectors_read import ERRORS, ROOT, ROUNDS, VECTORS, Case, numbers_in, setting_from, source, vectors
from tests.support.attempts_in_memory import mask_words
from tests.test_imports import imports


def words(values: list[int], bits: int) -> Any:
    return np.array(values, dtype=masking.word_dtype(bits))


def refuses(case: Case, call: Callable[..., object], *arguments: Any) -> None:
    with pytest.raises(ERRORS[case["refused"]["error"]]):
        call(*arguments)


def symbols(values: list[Any]) -> Any:
    return np.array(values, dtype=np.uint16)


@pytest.mark.parametrize("name", write_vectors.FILES)
def test_the_vectors_are_what_the_generator_writes(name: str) -> None:
    assert (VECTORS / name).read_text(encoding="utf-8") == write_vectors.text_of(name)


def test_there_are_no_other_vectors_and_they_are_small() -> None:
    files = {path.name: path.stat().st_size for path in VECTORS.iterdir()}
    assert files.keys() == write_vectors.FILES.keys()
    assert sum(files.values()) < 1_800_000


PRIMITIVES = {
    "kyber_py.ml_kem.ML_KEM_768",
    "cryptography.exceptions.InvalidSignature",
    *(f"cryptography.hazmat.primitives.ciphers.{name}" for name in ("Cipher", "algorithms", "modes")),
    *(f"cryptography.hazmat.primitives.asymmetric.ed25519.Ed25519{name}Key" for name in ("Private", "Public")),
}
NEVER_NAMED = {"__import__", "import_module", "exec", "eval", "CTR", "GCM"}


def foreign_imports(source_text: str) -> set[str]:
    """Imports of anything but the standard library, the reference itself and single blocks and signatures."""
    found = {one.module for one in imports("tests/reference/one.py", source_text, names=True)} - PRIMITIVES
    standard = sys.stdlib_module_names - {"importlib"}
    foreign = {one for one in found if not one.startswith("tests.reference.") and one.split(".")[0] not in standard}
    named = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(ast.parse(source_text))}
    return foreign | named & NEVER_NAMED


def test_the_reference_imports_nothing_of_ours() -> None:
    files = sorted((ROOT / "tests" / "reference").rglob("*.py"))
    assert len(files) > 8
    for path in files:
        assert not foreign_imports(path.read_text(encoding="utf-8")), path.name


@pytest.mark.parametrize(
    "line",
    [
        "import secagg",
        "import numpy as np",
        "from secagg.keys import hkdf",
        "from wire import codec",
        "from tests.secagg import fast_sides",
        "from cryptography.hazmat.primitives.ciphers.aead import AESGCM",
        "from ..secagg import fast_sides",
        "x = __import__('secagg')",
        "import importlib",
        "modes.GCM(bytes(12))",
    ],
)
def test_a_planted_import_is_found(line: str) -> None:
    assert foreign_imports(line)


def test_the_page_names_every_label() -> None:
    """Whatever the core hashes or signs under a label stands in docs/test_vectors.md, and nothing else does."""
    label = re.compile(r"sordino/v1/[a-z0-9-]+")
    page = (ROOT / "docs" / "test_vectors.md").read_text(encoding="utf-8")
    core = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "secagg").glob("*.py")))
    assert set(label.findall(page)) == set(label.findall(core))


# ---------------------------------------------------------------- parts


def test_hashes() -> None:
    for case in vectors("hashing.json")["labelled"]:
        assert context.encode(case["label"], *case["fields"]) == case["encoded"]
        assert context.digest(case["label"], *case["fields"]) == case["sha256"]
    for case in vectors("hashing.json")["hkdf_sha256"]:
        assert keys.hkdf(case["secret"], case["salt"], case["info"], case["length"]) == case["output"]


def test_contexts() -> None:
    found = vectors("contexts.json")
    for case in found["round_contexts"]:
        config = config_of(setting_from(case["setting"]))
        assert config.roster.digest() == case["roster_digest"]
        assert config.parameters.to_bytes() == case["numbers"]
        assert config.round_context() == case["round_context"]
    for case in found["cohort_contexts"]:
        members = [(member["identity"], member["advertisement_digest"]) for member in case["members"]]
        assert context.cohort_context(case["round_context"], members) == case["cohort_context"]
    for case in found["sets"]:
        assert keys.set_digest(case["name"], case["cohort_context"], case["identities"]) == case["digest"]


def test_digests_of_messages() -> None:
    for case in vectors("contexts.json")["advertisements"]:
        assert read_advertisement(case).digest() == case["digest"]
    for request in vectors("contexts.json")["unmasking_requests"]:
        assert request_digest(read_request(request)) == request["digest"]
    sets = vectors("contexts.json")["unsigned_unmasking_request"]
    assert request_digest(SurvivorSets(sets["u2"], sets["u3"])) == sets["digest"]


def test_numbers() -> None:
    refused = 0
    for case in vectors("contexts.json")["numbers"]:
        given_numbers = numbers_in(case)
        if "refused" in case:
            refused += 1
            refuses(case, partial(RoundParameters, **given_numbers))
            continue
        parameters = RoundParameters(**given_numbers)
        for size in case["thresholds"]:
            assert parameters.threshold(size["u1"]) == size["threshold"]
            assert parameters.signatures_needed(size["u1"]) == size["threshold"]
    assert refused == 13


def test_agreements() -> None:
    for case in vectors("keys.json")["x25519"]:
        assert keys.AgreementKey(case["private"]).agree(case["public"]) == case["shared"]
    for case in vectors("keys.json")["x25519_refused"]:
        refuses(case, keys.AgreementKey(b"\x77" * 32).agree, case["public"])
        assert keys.is_low_order(case["public"])


def test_derived_keys() -> None:
    case = vectors("keys.json")["derived"]
    alice, bob = (tuple(case[side].values()) for side in ("low", "high"))
    cohort, secret = case["cohort_context"], symbols(case["symbols"])
    assert keys.mask_private_key(secret, case["round_context"], alice[0]) == case["mask_private_key"]
    seed = keys.self_mask_seed(secret, cohort, alice[0])
    assert seed == case["self_mask_seed"]
    assert keys.seed_commitment(seed, cohort, alice[0]) == case["seed_commitment"]
    for one in case["noise_commitments"]:
        assert keys.noise_commitment(case["noise_seed"], one["part"], cohort, alice[0]) == one["commitment"]
    for one in case["masks"]:
        fixed = one["bits"], one["dim"], cohort, one["vector"]
        assert keys.pairwise_mask_key(case["shared"], alice, bob, *fixed) == one["pairwise_mask_key"]
        assert keys.self_mask_key(seed, alice[0], *fixed) == one["self_mask_key"]


def test_statements_and_signatures() -> None:
    statements: dict[str, tuple[Callable[..., bytes], str]] = {
        "session": (keys.session_statement, "study identity client_nonce server_nonce"),
        "advertisement": (keys.advertisement_statement, "round_context identity mask_key channel_key"),
        "dealing": (keys.dealing_statement, "cohort_context identity root seed_commitment"),
        "upload": (keys.upload_statement, "cohort_context identity sha256 u2"),
        "survivors": (keys.consistency_statement, "cohort_context u2 u3"),
    }
    cases = vectors("keys.json")["signed"]
    assert {case["kind"] for case in cases} == statements.keys()
    for case in cases:
        sets = {one: keys.set_digest(one, case["cohort_context"], case[one]) for one in ("u2", "u3") if one in case}
        statement, names = statements[case["kind"]]
        assert statement(*((case | sets)[one] for one in names.split())) == case["statement"]
        identity = keys.IdentityKey(Ed25519PrivateKey.from_private_bytes(case["identity_private"]))
        assert identity.sign(case["statement"]) == case["signature"]
        assert verify_signature(identity.public, case["signature"], case["statement"])
    for case in vectors("keys.json")["invalid_signatures"]:
        assert not verify_signature(case["identity"], case["signature"], case["statement"]), case["name"]


@pytest.mark.parametrize("keystream", ["gcm", "ctr"])
def test_masks(keystream: masking.Keystream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_chosen", keystream)
    for case in vectors("masks.json")["masks"]:
        assert mask_words(case["key"], case["dim"], case["bits"]).tolist() == case["mask"]
    for case in vectors("masks.json")["long"]:
        mask = mask_words(case["key"], case["dim"], case["bits"])
        assert hashlib.sha256(mask.tobytes()).digest() == case["sha256_of_words"]
    for case in vectors("masks.json")["sums"]:
        total = words(case["values"], case["bits"])
        masking.apply_masks(total, [(mask["key"], mask["sign"]) for mask in case["masks"]], case["bits"])
        assert total.tolist() == case["masked"]
    for case in vectors("masks.json")["refused"]:
        refuses(case, mask_words, case["key"], case["dim"], case["bits"])


def test_packing() -> None:
    for case in vectors("packing.json")["packed"]:
        values, bits = words(case["values"], case["bits"]), case["bits"]
        assert packing.pack(values, bits) == case["packed"]
        assert packing.unpack(case["packed"], case["dim"], bits).tolist() == case["values"]
        total = values.copy()
        packing.add_packed(total, case["packed"], bits)
        assert total.tolist() == [2 * value % 2**bits for value in case["values"]]
    for case in vectors("packing.json")["unpack_refused"]:
        before = words([1] * case["dim"], case["bits"])
        total = before.copy()
        refuses(case, packing.unpack, case["packed"], case["dim"], case["bits"])
        refuses(case, packing.add_packed, total, case["packed"], case["bits"])
        assert (total == before).all()
    for case in vectors("packing.json")["pack_refused"]:
        refuses(case, packing.pack, words(case["values"], case["bits"]), case["bits"])


def test_sharing() -> None:
    found = vectors("shamir.json")
    for case in found["random_symbols"]:
        assert shamir.random_symbols(4, source(case["randomness"])).tolist() == case["symbols"]
    for case in found["split"]:
        stream = Stream(case["randomness"])
        shares = shamir.split(symbols(case["secret"]), case["threshold"], case["xs"], stream.take)
        assert shares.tolist() == case["shares"]
        assert stream.taken == case["randomness"]
    for case in found["combine"]:
        assert shamir.combine(case["xs"], symbols(case["shares"]), case["threshold"]).tolist() == case["secret"]
        used = slice(case["threshold"])
        rebuilt = shamir.combine_each([case["xs"][used]], symbols([case["shares"][used]]))
        assert rebuilt.tolist() == [case["secret"]]
    for case in found["split_refused"]:
        refuses(case, shamir.split, symbols(case["secret"]), case["threshold"], case["xs"], source(bytes(1000)))
    for case in found["combine_refused"]:
        refuses(case, shamir.combine, case["xs"], symbols(case["shares"]), case["threshold"])


def test_commitments() -> None:
    found = vectors("commitments.json")
    for case in found["share_leaves"]:
        committed = commitments.LeavesOfHolder(
            [case["kind"].encode()], case["cohort_context"], case["holder"], case["x"]
        )
        assert committed.leaves([0], [case["dealer"]], [case["salt"]], [case["share"]]) == [case["leaf"]]
    pair = found["pair_node"]
    assert commitments.pair_node(pair["mask_leaf"], pair["seed_leaf"]) == pair["node"]
    for case in found["trees"]:
        tree = commitments.MerkleTree(case["entries"])
        assert tree.root == case["root"]
        for one in case["paths"]:
            assert list(tree.path(one["index"])) == one["path"]
            entry = case["entries"][one["index"]]
            assert commitments.verify_path(tree.root, entry, one["index"], len(case["entries"]), one["path"])
    for case in found["invalid_paths"]:
        place = case["entry"], case["index"], case["count"], case["path"]
        assert not commitments.verify_path(case["root"], *place), case["name"]


def test_sealed_shares() -> None:
    def channel(case: Case) -> keys.ShareChannel:
        ends = ((case[side]["identity"], case[side]["channel_key"]) for side in ("sender", "receiver"))
        return keys.ShareChannel(case["shared"], *ends, case["cohort_context"])

    for case in vectors("sealed_shares.json")["sealed"]:
        assert channel(case).seal(case["plaintext"]) == case["ciphertext"]
        assert channel(case).open(case["ciphertext"]) == case["plaintext"]
    for case in vectors("sealed_shares.json")["does_not_open"]:
        assert channel(case).open(case["ciphertext"]) is None, case["name"]


def test_rings() -> None:
    for case in vectors("graph.json")["rings"]:
        u1 = tuple(case["u1"])
        graph = HararyGraph(u1, Sharing(case["degree"], 2), case["cohort_context"])
        assert graph.ring == tuple(case["ring"])
        for one in case["members"]:
            who = one["member"]
            near = tuple(one["neighbours"])
            assert near == graph.neighbours(who) == graph.holders(who) == graph.dealers(who, frozenset(u1))
            assert graph.x(who) == one["x"]
            assert graph.places(who) == dict(zip(near, one["places"], strict=True))


def test_degree_and_threshold() -> None:
    for case in vectors("graph.json")["sharing"]:
        parameters = RoundParameters(**numbers_in(case))
        assert parameters.sharing(case["u1"]) == Sharing(case["degree"], case["threshold"])


def round_cases() -> list[Any]:
    return [pytest.param(case, id=case["name"]) for name in ROUNDS for case in vectors(name)["rounds"]]


@pytest.mark.parametrize("case", round_cases())
def test_rounds(case: Case) -> None:
    """Every message of every participant and of the coordinator, the randomness taken, and the end."""
    agreed = setting_from(case["setting"])
    people = case["participants"]
    streams = [Stream(one["randomness"]) for one in people]
    sides = [
        FastParticipant(agreed, one["identity_private"], stream.take)
        for one, stream in zip(people, streams, strict=True)
    ]
    coordinator = FastCoordinator(agreed)
    assert config_of(agreed).round_context() == case["round_context"]
    heard: dict[int, Case] = {who: {} for who in range(len(people))}
    for phase in agreed.numbers.phases:
        if phase in case.get("to_participants", {}):
            told = case["to_participants"][phase]
            assert heard == (told if told.keys() <= heard.keys() else dict.fromkeys(heard, told)), phase
        said = case["to_coordinator"][phase]
        for who, message in heard.items():
            if who in said and who not in case["crooked"]:
                assert sides[who].hear(phase, message, people[who]["input"]) == said[who], (phase, who)
        for who, message in said.items():
            coordinator.receive(who, message)
        for refused in case["refused"]:
            if refused["phase"] == phase:
                with pytest.raises(Refused) as caught:
                    coordinator.receive(refused["sender"], refused["message"])
                assert caught.value.stated().items() <= refused.items()
        if phase == "ShareKeys":
            assert coordinator.now.cohort.context == case["cohort_context"]
            graph = coordinator.now.cohort.graph
            assert (graph.degree, graph.threshold) == (case["degree"], case["threshold"])
            assert graph.complete is ("ring" not in case)
            assert graph.complete or graph.ring == tuple(case["ring"])
        if phase == "ConsistencyCheck":
            assert coordinator.now.statement == case["survivor_statement"]
        if phase == "Unmasking" and "ends" in case:
            with pytest.raises(Refused) as caught:
                coordinator.close()
            assert caught.value.stated() == case["ends"]
            return
        heard = coordinator.close()
    assert heard == case["sum"]
    assert sorted(coordinator.now.cheats) == case["cheats"]
    replies = case["to_coordinator"]["Unmasking"]
    assert coordinator.noise_seeds == {who: replies[who].get("noise_seeds", []) for who in case["u5"]}
    for who, stream in enumerate(streams):
        if who not in case["crooked"]:
            assert stream.taken == people[who]["randomness"]
    total = add_vectors((people[who]["input"] for who in case["u3"]), agreed.numbers.dim, agreed.numbers.bits)
    assert total == case["sum"]
