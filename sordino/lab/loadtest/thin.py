"""Thin participants of a load test: all that the coordinator sees of a participant, without the participant's work.

The coordinator does all its work, unchanged: sessions, proofs of identity, signatures, dealings under Merkle roots,
uploads, answers and sums are real. What it can't see is left out. Nothing is verified, opened or written down;
ciphertexts are random bytes; masks that cancel are not made. What is the same for all participants of a process is
computed once.

There are no secrets: those of an attempt follow from the load test's seed, as the vectors do, so every process can
compute those of all participants. Each polynomial is constant: a dealer's share is the secret itself for every holder,
with one salt, so that a holder can reveal it without having received it. The masks between two survivors cancel in the
sum and are left out. Those with a neighbour that is planned to leave once u2 is fixed don't cancel, because the
coordinator removes them: a survivor adds these. So a sum is right only if exactly the planned ones leave in
MaskedInputCollection; after any other dropout there it is wrong, and counted as wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import random
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from client.behaviour import Behaviour, Number
from client.connection import Channels, DocumentUnavailable, Session, UploadRejected, open_session
from client.credentials import load_certificate
from client.participant_host import FINAL, OPENING_AT_ONCE, RETRY_S
from client.settings import HostSettings
from client.study_terms import ROSTER_BYTES
from runtime.failure import InputFailure
from secagg.commitments import LeavesOfHolder, MerkleTree, pair_nodes
from secagg.context import RoundConfig, cohort_context, set_of, survivor_statement
from secagg.graph import Graph, graph_of
from secagg.keys import (
    KEY_BYTES,
    AgreementKey,
    IdentityKey,
    advertisement_statement,
    dealing_statement,
    mask_key_of,
    pairwise_mask_key,
    seed_commitment,
    self_mask_key,
    self_mask_seed,
    upload_statement,
)
from secagg.masking import apply_masks
from secagg.messages import (
    CIPHERTEXT_BYTES,
    KIND_LABELS,
    MASK_KEY,
    MASKED_INPUT,
    SALT_BYTES,
    SELF_MASK_SEED,
    Advertisement,
    CohortKeys,
    ConsistencySignature,
    MaskedInput,
    MaskKeyShare,
    SealedShares,
    SelfMaskSeedShare,
    Subset,
    SurvivorSets,
    UnmaskingReply,
)
from secagg.packing import pack
from secagg.roster import Roster, verify_roster
from secagg.shamir import PRIME
from sordino.lab.loadtest.faults import digest
from sordino.lab.loadtest.options import LoadOptions
from sordino.lab.loadtest.sums import vector
from wire import codec, coordinator_pb2 as pb
from wire.round_model import model_bytes
from wire.study import LARGEST_DOCUMENT, StudyDocument, round_parameters

_ATTEMPTS_HELD: Final = 2


@dataclass(frozen=True)
class _Secret:
    """One of a dealer's two secrets, which is also every holder's share of it."""

    symbols: NDArray[np.uint16] = field(repr=False)
    share: bytes = field(repr=False)
    salt: bytes = field(repr=False)


class ThinAttempt:
    """What the thin participants of a process send in an attempt."""

    graph: Graph
    context: bytes
    sets: SurvivorSets
    """As the coordinator stated them; an honest one tells everybody the same."""

    def __init__(self, config: RoundConfig, load: LoadOptions) -> None:
        self._config, self._load, self._number = config, load, (config.round, config.attempt)
        self._round_context = config.round_context()
        self.leaving = frozenset(who for who, drop in load.drops(*self._number).items() if drop.phase == MASKED_INPUT)
        """Whose masks with the survivors don't cancel, if they are in u2."""
        self._secret, self._mask_key = cache(self._make_secret), cache(self._make_mask_key)
        self.begun, self.signed = False, config.parameters.signed

    def _identity(self, who: int) -> bytes:
        return self._config.roster.identity(who)

    def _me(self, key: IdentityKey) -> int:
        return self._config.roster.positions[key.public]

    def _make_secret(self, kind: int, who: int) -> _Secret:
        about = (self._load.seed, *self._number, self._identity(who))
        symbols = np.frombuffer(digest(b"thin " + KIND_LABELS[kind], *about), dtype="<u2") % np.uint16(PRIME)
        salt = digest(b"thin salt, " + KIND_LABELS[kind], *about)[:SALT_BYTES]
        return _Secret(symbols, symbols.astype("<u2").tobytes(), salt)

    def _make_mask_key(self, who: int) -> AgreementKey:
        return mask_key_of(self._secret(MASK_KEY, who).symbols, self._round_context, self._identity(who))

    def advertise(self, key: IdentityKey) -> Advertisement:
        keys = self._mask_key(self._me(key)).public, os.urandom(KEY_BYTES)  # nobody agrees with the channel key
        return Advertisement(*keys, key.sign(advertisement_statement(self._round_context, key.public, *keys)))

    def begin(self, keys: CohortKeys) -> None:
        """Derive what follows from u1, from the message to any participant."""
        config = self._config
        listed = [(who, one.digest() if isinstance(one, Advertisement) else one) for who, one in keys.members]
        self.context = cohort_context(self._round_context, [(self._identity(who), one) for who, one in listed])
        self.graph = graph_of(tuple(who for who, _ in listed), config.parameters, self.context)
        self._holders, self._leaves = cache(self.graph.holders), cache(self._leaves_of)
        self._revealed = cache(self._reveal)
        self._set = cache(lambda bitmap: frozenset(Subset(bitmap, self.graph.u1)))
        self._u2_digest = cache(lambda u2: set_of(config, self.context, "u2", self._set(u2)))
        self._statement = cache(lambda u2, u3: survivor_statement(config, self.context, self._set(u2), self._set(u3)))
        self.begun = True

    def _leaves_of(self, holder: int) -> LeavesOfHolder:
        return LeavesOfHolder(KIND_LABELS, self.context, self._identity(holder), self.graph.x(holder))

    def _seed(self, key: IdentityKey) -> bytes:
        return self_mask_seed(self._secret(SELF_MASK_SEED, self._me(key)).symbols, self.context, key.public)

    def deal(self, key: IdentityKey) -> SealedShares:
        me, degree = self._me(key), self.graph.degree
        kinds, dealer = (MASK_KEY, SELF_MASK_SEED), (key.public,) * 2
        secrets = [self._secret(kind, me) for kind in kinds]
        shares, salts = zip(*((one.share, one.salt) for one in secrets), strict=True)
        leaves: list[bytes] = []
        for holder in self._holders(me):
            leaves += self._leaves(holder).leaves(kinds, dealer, salts, shares)
        root = MerkleTree(pair_nodes(b"".join(leaves))).root
        commitment = seed_commitment(self._seed(key), self.context, key.public)
        signature = key.sign(dealing_statement(self.context, key.public, root, commitment))
        ciphertexts = struct.unpack(f"{CIPHERTEXT_BYTES}s" * degree, os.urandom(CIPHERTEXT_BYTES * degree))
        return SealedShares(ciphertexts, tuple(leaves), commitment, signature)

    def mask(self, key: IdentityKey, u2: bytes) -> MaskedInput:
        """Args: u2: bitmap over u1."""
        me, parameters = self._me(key), self._config.parameters
        size, members = (parameters.bits, parameters.dim), self._set(u2)
        words = vector(self._load.seed, *self._number, key.public, dim=parameters.dim, bits=parameters.bits)
        masks = [(self_mask_key(self._seed(key), key.public, *size, self.context), 1)]
        for other in self.leaving.intersection(self._holders(me)) & members - {me}:
            low, high = ((self._identity(who), self._mask_key(who).public) for who in sorted((me, other)))
            shared = self._mask_key(me).agree(self._mask_key(other).public)
            masks.append((pairwise_mask_key(shared, low, high, *size, self.context), 1 if me < other else -1))
        apply_masks(words, masks, parameters.bits)
        packed = bytes(pack(words, parameters.bits))
        sha256 = hashlib.sha256(packed).digest()
        statement = upload_statement(self.context, key.public, sha256, self._u2_digest(u2))
        return MaskedInput(packed, sha256, key.sign(statement))

    def sign(self, key: IdentityKey) -> ConsistencySignature:
        return ConsistencySignature(key.sign(self._statement(self.sets.u2, self.sets.u3)))

    def reveal(self, key: IdentityKey) -> pb.UnmaskingReply:
        u2, u3 = self._set(self.sets.u2), self._set(self.sets.u3)
        dealers = (dealer for dealer in self._holders(self._me(key)) if dealer in u2)
        return pb.UnmaskingReply.FromString(b"".join(self._revealed(dealer, dealer in u3) for dealer in dealers))

    def _reveal(self, dealer: int, survived: bool) -> bytes:
        """A dealer's entry of every holder's reply, serialised."""
        secret = self._secret(SELF_MASK_SEED if survived else MASK_KEY, dealer)
        share = (SelfMaskSeedShare if survived else MaskKeyShare)(secret.share, secret.salt)
        return codec.write_unmasking_reply(UnmaskingReply((share,))).SerializeToString()


class ThinProcess:
    """What the thin participants of a process share: the study and its roster, verified once, and attempts."""

    _document: StudyDocument
    _roster: Roster

    def __init__(self, settings: HostSettings, load: LoadOptions) -> None:
        """Raises CertificateError or `runtime.key_files.KeyFileError`: the certificate can't be used."""
        coordinator = settings.coordinator
        self._settings, self._load = settings, load
        self._ca = coordinator.ca.read_bytes()
        self._certificate = load_certificate(coordinator.certificate, coordinator.key)
        self.opening = asyncio.Semaphore(OPENING_AT_ONCE)
        self._verified: tuple[bytes, bytes] | None = None
        self._attempts: dict[Number, ThinAttempt] = {}

    def channels(self) -> Channels:
        """Those of one participant."""
        return Channels(self._settings.coordinator.address, self._ca, self._certificate)

    async def open(self, channels: Channels, identity: IdentityKey, failures: int) -> Session:
        study = self._settings.study.name
        async with self.opening:
            turn = channels.first_turn(study, identity.public) + failures
            return await open_session(channels.current(turn), identity, study)

    async def fetch(self, session: Session) -> None:
        """Fetch study and roster, as each participant does."""
        names = session.welcome.study_sha256, session.welcome.roster_sha256
        study = await session.download(names[0], LARGEST_DOCUMENT)
        roster = await session.download(names[1], (1 << 16) + ROSTER_BYTES * self._load.clients)
        if self._verified != names:
            self._document = StudyDocument.from_bytes(study)
            self._roster = verify_roster(roster, self._settings.study.authority_public_key_bytes)
            self._verified = names

    async def fetch_model(self, session: Session, start: pb.RoundStart, held: bytes) -> None:
        plan = self._document.plan
        await session.model(start.model_sha256, model_bytes(plan.dim, plan.clipping), held)

    def attempt(self, start: pb.RoundStart) -> ThinAttempt:
        number = (start.round, start.attempt)
        if number not in self._attempts:
            config = RoundConfig(
                roster=self._roster,
                round=start.round,
                attempt=start.attempt,
                study_digest=start.study_sha256,
                model_digest=start.model_sha256,
                parameters=round_parameters(self._document.plan),
                newest=start.newest,
            )
            self._attempts[number] = ThinAttempt(config, self._load)
            while len(self._attempts) > _ATTEMPTS_HELD:
                self._attempts.pop(next(iter(self._attempts)))
        return self._attempts[number]


class ThinParticipant:
    """One thin participant, with its own connection; in the place of a `client.participant_host.ParticipantHost`."""

    _session: Session
    _number: Number

    def __init__(self, process: ThinProcess, key: IdentityKey, behaviour: Behaviour) -> None:
        self._process, self._key, self._behaviour = process, key, behaviour
        self._fetched = False
        self._attempt: ThinAttempt | None = None
        self._packed = self._model_sha256 = b""

    async def stay(self) -> None:
        """Until the study ends. Raises Failure: the coordinator refuses this participant."""
        channels = self._process.channels()
        try:
            await self._behaviour.attend(lambda: self._stay_connected(channels), channels.cut)
        finally:
            await channels.close()

    async def _stay_connected(self, channels: Channels) -> None:
        for failures in itertools.count():
            try:
                self._session = session = await self._process.open(channels, self._key, failures)
                try:
                    if await self._take_part(session):
                        return
                    trouble = "it closed the connection"
                finally:
                    session.close()
            except grpc.aio.AioRpcError as error:
                trouble = error.details() or error.code().name
                if error.code() in FINAL:
                    raise InputFailure(f"the coordinator refuses a participant: {trouble}") from error
            except (DocumentUnavailable, TimeoutError) as error:
                trouble = str(error) or "it is silent"
            self._behaviour.away(trouble)
            await asyncio.sleep(random.uniform(*RETRY_S))  # spreads the load

    async def _take_part(self, session: Session) -> bool:
        """Answer until the session ends, and with it the attempt under way; whether the study has ended too."""
        self._attempt = None
        if not self._fetched:
            await self._process.fetch(session)
            self._fetched = True
        await session.send(pb.ParticipantMessage(ready=pb.Ready()))
        beating = asyncio.create_task(session.beat())
        try:
            async for message in session.messages():
                kind = str(message.WhichOneof("message"))
                if kind == "study_end":
                    return True
                await self._answer(kind, getattr(message, kind))
            return False
        finally:
            beating.cancel()

    async def _answer(self, kind: str, content: Any) -> None:
        key = self._key
        if kind == "round_start":
            self._attempt, self._number = self._process.attempt(content), (content.round, content.attempt)
            await self._say("advertise_keys", codec.write_advertisement(self._attempt.advertise(key)))
            await self._process.fetch_model(self._session, content, self._model_sha256)
            self._model_sha256 = content.model_sha256
        attempt = self._attempt
        if attempt is None or (getattr(content, "round", 0), getattr(content, "attempt", 0)) != self._number:
            return
        match kind:
            case "cohort_keys":
                if not attempt.begun:
                    attempt.begin(codec.read_cohort_keys(content))
                await self._say("share_keys", codec.write_sealed_shares(attempt.deal(key)))
            case "neighbour_shares":
                masked = attempt.mask(key, content.u2)
                self._packed = masked.packed
                await self._say("masked_input", pb.MaskedInputOffer(sha256=masked.sha256, signature=masked.signature))
            case "upload_credit":
                with contextlib.suppress(UploadRejected):  # the coordinator records why
                    await self._behaviour.upload(self._number, self._packed, content.offset, self._upload)
            case "survivor_sets":
                self._packed, attempt.sets = b"", codec.read_survivor_sets(content)
                if attempt.signed:
                    await self._say("consistency", codec.write_consistency(attempt.sign(key)))
                else:
                    await self._say("unmasking", attempt.reveal(key))
            case "unmasking_request":
                await self._say("unmasking", attempt.reveal(key))

    async def _upload(self, chunks: AsyncIterator[bytes]) -> bool:
        await self._session.upload(chunks)
        return True

    async def _say(self, kind: str, content: Any) -> None:
        round_, attempt = self._number

        async def send(content: Any) -> None:
            phase: dict[str, Any] = {"round": round_, "attempt": attempt, kind: content}
            await self._session.send(pb.ParticipantMessage(phase=pb.PhaseMessage(**phase)))

        await self._behaviour.say(self._number, kind, content, send)
