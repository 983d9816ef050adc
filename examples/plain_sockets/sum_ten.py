"""Ten processes sum vectors over plain sockets, with the protocol core alone."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from io import BufferedRWPair
from typing import Any

import numpy as np

from secagg import client_phases, server_phases
from secagg.client_unmasking import ConsistencyCheck
from secagg.context import RoundConfig
from secagg.in_memory import fresh_roster
from secagg.keys import IdentityKey
from secagg.messages import MaskedInput
from secagg.parameters import RoundParameters
from secagg.server_unmasking import Completed
from wire import codec, coordinator_pb2 as pb

PLAN = RoundParameters(cohort=10, colluders=2, min_survivors=7, quorum=8, bits=16, dim=5)


def send(link: BufferedRWPair, message: bytes) -> None:
    link.write(len(message).to_bytes(4, "little") + message)
    link.flush()


def receive(link: BufferedRWPair) -> bytes:
    return link.read(int.from_bytes(link.read(4), "little"))  # empty if the other side has left


def participant(me: int, port: int, config: RoundConfig, identity: IdentityKey, leaves: bool) -> None:
    link = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
    send(link, bytes([me]))
    sharing, advertisement = client_phases.AdvertiseKeys(config, identity, os.urandom).advertise()
    send(link, codec.write_advertisement(advertisement).SerializeToString())
    collecting, shares = sharing.receive(codec.read_cohort_keys(pb.CohortKeys.FromString(receive(link))))
    send(link, codec.write_sealed_shares(shares).SerializeToString())
    masking = collecting.receive(codec.read_neighbour_shares(pb.NeighbourShares.FromString(receive(link))))
    if leaves:
        return
    checking, upload = masking.mask(np.full(PLAN.dim, 10 * me, np.uint16))
    send(link, upload.sha256 + upload.signature + upload.packed)
    assert isinstance(checking, ConsistencyCheck)  # noqa: S101  # as in every plan against a malicious coordinator
    unmasking, signed = checking.receive(codec.read_survivor_sets(pb.SurvivorSets.FromString(receive(link))))
    send(link, codec.write_consistency(signed).SerializeToString())
    _, reply = unmasking.receive(codec.read_unmasking_request(pb.UnmaskingRequest.FromString(receive(link))))
    send(link, codec.write_unmasking_reply(reply).SerializeToString())


def coordinator(links: dict[int, BufferedRWPair], config: RoundConfig) -> Completed:
    def gather(phase: Any, read: Callable[[bytes], Any]) -> None:
        for who, link in list(links.items()):
            if data := receive(link):
                phase.receive(who, read(data))
            else:
                print(f"participant {who} left before {phase.name}")
                del links[who]

    def tell(messages: Any, write: Callable[[int, int, Any], Any]) -> None:
        for who, message in messages.items():
            send(links[who], write(config.round, config.attempt, message).SerializeToString())

    advertising = server_phases.AdvertiseKeys(config, frozenset(links))
    gather(advertising, lambda data: codec.read_advertisement(pb.Advertisement.FromString(data)))
    sharing, keys = advertising.close()
    tell(keys, codec.write_cohort_keys)
    gather(sharing, lambda data: codec.read_sealed_shares(pb.SealedShares.FromString(data)))
    collecting, shares = sharing.close()
    tell(shares, codec.write_neighbour_shares)
    gather(collecting, lambda data: MaskedInput(data[96:], data[:32], data[32:96]))
    checking, sets = collecting.close()
    tell(sets, codec.write_survivor_sets)
    gather(checking, lambda data: codec.read_consistency(pb.ConsistencySignature.FromString(data)))
    unmasking, requests = checking.close()
    tell(requests, codec.write_unmasking_request)
    gather(unmasking, lambda data: codec.read_unmasking_reply(pb.UnmaskingReply.FromString(data)))
    return unmasking.close()


if __name__ == "__main__":
    # In a real system each participant makes its identity itself, and all know the authority that signs the roster.
    roster, identities = fresh_roster("ten sums", PLAN.cohort, os.urandom)
    agreed = bytes(32)  # the digest of everything else that they agree on, such as terms and model
    config = RoundConfig(roster=roster, round=1, attempt=1, study_digest=agreed, model_digest=agreed, parameters=PLAN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for me, identity in enumerate(identities):
            given = (me, listener.getsockname()[1], config, identity, me == 3)
            multiprocessing.get_context("fork").Process(target=participant, args=given).start()
        links = [listener.accept()[0].makefile("rwb") for _ in identities]
    done = coordinator({receive(link)[0]: link for link in links}, config)
    print("the sum of", sorted(done.u3), "is", done.total)
