from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENROL_STATUS_UNSPECIFIED: _ClassVar[EnrolStatus]
    ENROL_STATUS_PENDING: _ClassVar[EnrolStatus]
    ENROL_STATUS_ACCEPTED: _ClassVar[EnrolStatus]
    ENROL_STATUS_REFUSED: _ClassVar[EnrolStatus]

class RefusalCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_CODE_UNSPECIFIED: _ClassVar[RefusalCode]
    REFUSAL_CODE_COORDINATOR_MISBEHAVED: _ClassVar[RefusalCode]
    REFUSAL_CODE_POLICY: _ClassVar[RefusalCode]
    REFUSAL_CODE_ALREADY_JOINED: _ClassVar[RefusalCode]
    REFUSAL_CODE_LOCAL_FAILURE: _ClassVar[RefusalCode]
    REFUSAL_CODE_BUDGET: _ClassVar[RefusalCode]
ENROL_STATUS_UNSPECIFIED: EnrolStatus
ENROL_STATUS_PENDING: EnrolStatus
ENROL_STATUS_ACCEPTED: EnrolStatus
ENROL_STATUS_REFUSED: EnrolStatus
REFUSAL_CODE_UNSPECIFIED: RefusalCode
REFUSAL_CODE_COORDINATOR_MISBEHAVED: RefusalCode
REFUSAL_CODE_POLICY: RefusalCode
REFUSAL_CODE_ALREADY_JOINED: RefusalCode
REFUSAL_CODE_LOCAL_FAILURE: RefusalCode
REFUSAL_CODE_BUDGET: RefusalCode

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("card", "study_document", "newest")
    CARD_FIELD_NUMBER: _ClassVar[int]
    STUDY_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    card: bytes
    study_document: bytes
    newest: bytes
    def __init__(self, card: _Optional[bytes] = ..., study_document: _Optional[bytes] = ..., newest: _Optional[bytes] = ...) -> None: ...

class EnrolRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    def __init__(self, request: _Optional[bytes] = ...) -> None: ...

class EnrolAnswer(_message.Message):
    __slots__ = ("status", "reason", "answer")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    status: EnrolStatus
    reason: str
    answer: bytes
    def __init__(self, status: _Optional[_Union[EnrolStatus, str]] = ..., reason: _Optional[str] = ..., answer: _Optional[bytes] = ...) -> None: ...

class AuthorityHello(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuthorityChallenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class PendingRequest(_message.Message):
    __slots__ = ("nonce", "signature")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    signature: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class PendingRequests(_message.Message):
    __slots__ = ("requests", "roster_version", "newest_until")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_UNTIL_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[bytes]
    roster_version: int
    newest_until: int
    def __init__(self, requests: _Optional[_Iterable[bytes]] = ..., roster_version: _Optional[int] = ..., newest_until: _Optional[int] = ...) -> None: ...

class PublishReceipt(_message.Message):
    __slots__ = ("roster_version",)
    ROSTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    roster_version: int
    def __init__(self, roster_version: _Optional[int] = ...) -> None: ...

class DocumentRequest(_message.Message):
    __slots__ = ("sha256", "history_after", "held")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    HISTORY_AFTER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    history_after: int
    held: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., history_after: _Optional[int] = ..., held: _Optional[bytes] = ...) -> None: ...

class UploadReceipt(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    def __init__(self, sha256: _Optional[bytes] = ...) -> None: ...

class ParticipantMessage(_message.Message):
    __slots__ = ("open", "proof", "ready", "heartbeat", "refusal", "phase", "leaving")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    open: Open
    proof: Proof
    ready: Ready
    heartbeat: Heartbeat
    refusal: Refusal
    phase: PhaseMessage
    leaving: Leaving
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., phase: _Optional[_Union[PhaseMessage, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "identity", "study", "nonce")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    identity: bytes
    study: str
    nonce: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., identity: _Optional[bytes] = ..., study: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("resume",)
    RESUME_FIELD_NUMBER: _ClassVar[int]
    resume: Resume
    def __init__(self, resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("round", "attempt", "received")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    received: int
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("resting",)
    RESTING_FIELD_NUMBER: _ClassVar[int]
    resting: bool
    def __init__(self, resting: bool = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("round", "attempt", "code", "joined_round", "joined_attempt")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    JOINED_ROUND_FIELD_NUMBER: _ClassVar[int]
    JOINED_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    code: RefusalCode
    joined_round: int
    joined_attempt: int
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., code: _Optional[_Union[RefusalCode, str]] = ..., joined_round: _Optional[int] = ..., joined_attempt: _Optional[int] = ...) -> None: ...

class PhaseMessage(_message.Message):
    __slots__ = ("round", "attempt", "advertise_keys", "share_keys", "masked_input", "consistency", "unmasking")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_KEYS_FIELD_NUMBER: _ClassVar[int]
    SHARE_KEYS_FIELD_NUMBER: _ClassVar[int]
    MASKED_INPUT_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    UNMASKING_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    advertise_keys: Advertisement
    share_keys: SealedShares
    masked_input: MaskedInputOffer
    consistency: ConsistencySignature
    unmasking: UnmaskingReply
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., advertise_keys: _Optional[_Union[Advertisement, _Mapping]] = ..., share_keys: _Optional[_Union[SealedShares, _Mapping]] = ..., masked_input: _Optional[_Union[MaskedInputOffer, _Mapping]] = ..., consistency: _Optional[_Union[ConsistencySignature, _Mapping]] = ..., unmasking: _Optional[_Union[UnmaskingReply, _Mapping]] = ...) -> None: ...

class Advertisement(_message.Message):
    __slots__ = ("mask_key", "channel_key", "signature")
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    mask_key: bytes
    channel_key: bytes
    signature: bytes
    def __init__(self, mask_key: _Optional[bytes] = ..., channel_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SealedShares(_message.Message):
    __slots__ = ("ciphertexts", "leaves", "seed_commitment", "signature", "wrapped")
    CIPHERTEXTS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    SEED_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    WRAPPED_FIELD_NUMBER: _ClassVar[int]
    ciphertexts: _containers.RepeatedScalarFieldContainer[bytes]
    leaves: _containers.RepeatedScalarFieldContainer[bytes]
    seed_commitment: bytes
    signature: bytes
    wrapped: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ciphertexts: _Optional[_Iterable[bytes]] = ..., leaves: _Optional[_Iterable[bytes]] = ..., seed_commitment: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., wrapped: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MaskedInputOffer(_message.Message):
    __slots__ = ("sha256", "signature")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    signature: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ConsistencySignature(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class UnmaskingReply(_message.Message):
    __slots__ = ("shares", "noise_seeds")
    SHARES_FIELD_NUMBER: _ClassVar[int]
    NOISE_SEEDS_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[PeerShare]
    noise_seeds: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shares: _Optional[_Iterable[_Union[PeerShare, _Mapping]]] = ..., noise_seeds: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PeerShare(_message.Message):
    __slots__ = ("self_mask_seed", "mask_key", "none")
    SELF_MASK_SEED_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    self_mask_seed: RevealedShare
    mask_key: RevealedShare
    none: NoShare
    def __init__(self, self_mask_seed: _Optional[_Union[RevealedShare, _Mapping]] = ..., mask_key: _Optional[_Union[RevealedShare, _Mapping]] = ..., none: _Optional[_Union[NoShare, _Mapping]] = ...) -> None: ...

class RevealedShare(_message.Message):
    __slots__ = ("share", "salt")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    share: bytes
    salt: bytes
    def __init__(self, share: _Optional[bytes] = ..., salt: _Optional[bytes] = ...) -> None: ...

class NoShare(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("challenge", "welcome", "round_start", "cohort_keys", "neighbour_shares", "upload_credit", "survivor_sets", "unmasking_request", "round_end", "study_end", "heartbeat", "survivor_proof", "resumed", "rest")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ROUND_START_FIELD_NUMBER: _ClassVar[int]
    COHORT_KEYS_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOUR_SHARES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_CREDIT_FIELD_NUMBER: _ClassVar[int]
    SURVIVOR_SETS_FIELD_NUMBER: _ClassVar[int]
    UNMASKING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_END_FIELD_NUMBER: _ClassVar[int]
    STUDY_END_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SURVIVOR_PROOF_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    welcome: Welcome
    round_start: RoundStart
    cohort_keys: CohortKeys
    neighbour_shares: NeighbourShares
    upload_credit: UploadCredit
    survivor_sets: SurvivorSets
    unmasking_request: UnmaskingRequest
    round_end: RoundEnd
    study_end: StudyEnd
    heartbeat: Heartbeat
    survivor_proof: SurvivorProof
    resumed: Resumed
    rest: Rest
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., round_start: _Optional[_Union[RoundStart, _Mapping]] = ..., cohort_keys: _Optional[_Union[CohortKeys, _Mapping]] = ..., neighbour_shares: _Optional[_Union[NeighbourShares, _Mapping]] = ..., upload_credit: _Optional[_Union[UploadCredit, _Mapping]] = ..., survivor_sets: _Optional[_Union[SurvivorSets, _Mapping]] = ..., unmasking_request: _Optional[_Union[UnmaskingRequest, _Mapping]] = ..., round_end: _Optional[_Union[RoundEnd, _Mapping]] = ..., study_end: _Optional[_Union[StudyEnd, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., survivor_proof: _Optional[_Union[SurvivorProof, _Mapping]] = ..., resumed: _Optional[_Union[Resumed, _Mapping]] = ..., rest: _Optional[_Union[Rest, _Mapping]] = ...) -> None: ...

class Rest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session_token", "study_sha256", "roster_sha256")
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STUDY_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROSTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    session_token: bytes
    study_sha256: bytes
    roster_sha256: bytes
    def __init__(self, session_token: _Optional[bytes] = ..., study_sha256: _Optional[bytes] = ..., roster_sha256: _Optional[bytes] = ...) -> None: ...

class RoundStart(_message.Message):
    __slots__ = ("round", "attempt", "model_sha256", "study_sha256", "roster_sha256", "ticket", "newest")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    STUDY_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROSTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    model_sha256: bytes
    study_sha256: bytes
    roster_sha256: bytes
    ticket: LotteryTicket
    newest: bytes
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., model_sha256: _Optional[bytes] = ..., study_sha256: _Optional[bytes] = ..., roster_sha256: _Optional[bytes] = ..., ticket: _Optional[_Union[LotteryTicket, _Mapping]] = ..., newest: _Optional[bytes] = ...) -> None: ...

class LotteryTicket(_message.Message):
    __slots__ = ("seed", "path")
    SEED_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    seed: bytes
    path: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, seed: _Optional[bytes] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CohortKeys(_message.Message):
    __slots__ = ("round", "attempt", "members")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    members: _containers.RepeatedCompositeFieldContainer[CohortMember]
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., members: _Optional[_Iterable[_Union[CohortMember, _Mapping]]] = ...) -> None: ...

class CohortMember(_message.Message):
    __slots__ = ("participant", "advertisement", "advertisement_sha256")
    PARTICIPANT_FIELD_NUMBER: _ClassVar[int]
    ADVERTISEMENT_FIELD_NUMBER: _ClassVar[int]
    ADVERTISEMENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    participant: int
    advertisement: Advertisement
    advertisement_sha256: bytes
    def __init__(self, participant: _Optional[int] = ..., advertisement: _Optional[_Union[Advertisement, _Mapping]] = ..., advertisement_sha256: _Optional[bytes] = ...) -> None: ...

class NeighbourShares(_message.Message):
    __slots__ = ("round", "attempt", "shares", "u2")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    U2_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    shares: _containers.RepeatedCompositeFieldContainer[DealtShare]
    u2: bytes
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[DealtShare, _Mapping]]] = ..., u2: _Optional[bytes] = ...) -> None: ...

class DealtShare(_message.Message):
    __slots__ = ("dealer", "ciphertext", "root", "path", "seed_commitment", "signature", "wrapped", "pair")
    DEALER_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXT_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SEED_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    WRAPPED_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    dealer: int
    ciphertext: bytes
    root: bytes
    path: bytes
    seed_commitment: bytes
    signature: bytes
    wrapped: bytes
    pair: bytes
    def __init__(self, dealer: _Optional[int] = ..., ciphertext: _Optional[bytes] = ..., root: _Optional[bytes] = ..., path: _Optional[bytes] = ..., seed_commitment: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., wrapped: _Optional[bytes] = ..., pair: _Optional[bytes] = ...) -> None: ...

class UploadCredit(_message.Message):
    __slots__ = ("round", "attempt", "offset")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    offset: int
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("round", "attempt", "received", "uploaded")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    received: int
    uploaded: bool
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., received: _Optional[int] = ..., uploaded: bool = ...) -> None: ...

class SurvivorSets(_message.Message):
    __slots__ = ("round", "attempt", "u2", "u3")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    U2_FIELD_NUMBER: _ClassVar[int]
    U3_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    u2: bytes
    u3: bytes
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., u2: _Optional[bytes] = ..., u3: _Optional[bytes] = ...) -> None: ...

class UnmaskingRequest(_message.Message):
    __slots__ = ("round", "attempt", "signatures", "uploads")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    signatures: _containers.RepeatedCompositeFieldContainer[SurvivorSignature]
    uploads: _containers.RepeatedCompositeFieldContainer[SignedUpload]
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., signatures: _Optional[_Iterable[_Union[SurvivorSignature, _Mapping]]] = ..., uploads: _Optional[_Iterable[_Union[SignedUpload, _Mapping]]] = ...) -> None: ...

class SignedUpload(_message.Message):
    __slots__ = ("sha256", "signature")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    signature: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SurvivorSignature(_message.Message):
    __slots__ = ("participant", "signature")
    PARTICIPANT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    participant: int
    signature: bytes
    def __init__(self, participant: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SurvivorProof(_message.Message):
    __slots__ = ("round", "attempt", "u2", "u3", "signatures")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    U2_FIELD_NUMBER: _ClassVar[int]
    U3_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    u2: bytes
    u3: bytes
    signatures: _containers.RepeatedCompositeFieldContainer[SurvivorSignature]
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., u2: _Optional[bytes] = ..., u3: _Optional[bytes] = ..., signatures: _Optional[_Iterable[_Union[SurvivorSignature, _Mapping]]] = ...) -> None: ...

class RoundEnd(_message.Message):
    __slots__ = ("round", "attempt", "completed", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    completed: bool
    reason: str
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., completed: bool = ..., reason: _Optional[str] = ...) -> None: ...

class StudyEnd(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
