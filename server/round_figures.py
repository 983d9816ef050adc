"""What a study's events say: of the study when it begins, and of a round when its sum has been learnt from."""

from __future__ import annotations

from typing import Any

from learning.data_names import BROUGHT
from learning.learner import further_figures
from mechanisms.plan import Plan
from mechanisms.wrap_monitor import FEWEST_VALUES
from secagg.messages import ADVERTISE_KEYS, SHARE_KEYS
from secagg.parameters import RoundParameters
from secagg.roster import Roster
from secagg.server_unmasking import Completed
from server.attempt.attempt import Attempt
from server.events import RoundCompleted, StudyStarted
from server.membership import Membership
from server.study_file import StudyConfiguration
from server.trained_model import Learned
from wire.study import StudyDocument, planned_upload_bytes


def study_started(
    configuration: StudyConfiguration, document: StudyDocument, parameters: RoundParameters, membership: Membership
) -> StudyStarted:
    """What the study is: its participants, plan, threshold and data. The addresses are missing."""
    data, plan, roster = configuration.data, document.plan, membership.roster
    return StudyStarted(
        task=document.task,
        study=document.study,
        participants=len(roster),
        roster_version=roster.version,
        members=tuple(sorted(membership.numbers)),
        hosts=hosts_of(roster),
        rounds=plan.rounds,
        delta=plan.delta,
        epsilon_target=configuration.privacy.epsilon,
        plan=plan.to_json(),
        threshold=parameters.threshold(parameters.cohort),
        partition={}
        if data.dataset in BROUGHT
        else {"name": data.partition, "alpha": data.alpha, "shards": data.shards, "seed": data.seed},
        dataset=data.dataset,
        planned_upload_bytes=planned_upload_bytes(plan),
        one_machine=configuration.coordinator.one_machine,
    )


def hosts_of(roster: Roster) -> int:
    """How many hosts a roster lists participants under."""
    return len({entry.host for entry in roster.entries})


def round_completed(
    plan: Plan, attempt: Attempt, completed: Completed, learned: Learned, membership: Membership, **others: Any
) -> RoundCompleted:
    """Who took part in a completed attempt and until when, what it cost in time and bytes, and what was learnt."""
    figures, evaluation = attempt.figures, learned.evaluation
    upload, download = attempt.traffic.mean(completed.u5, len(attempt.cohort))
    return RoundCompleted(
        round=attempt.config.round,
        attempt=attempt.config.attempt,
        u1=figures.received.get(ADVERTISE_KEYS, 0),
        u2=figures.received.get(SHARE_KEYS, 0),
        u3=len(completed.u3),
        u4=len(completed.u4),
        u5=len(completed.u5),
        dropouts=figures.dropouts,
        key_to_sum_s=round(figures.key_to_sum_s, 3),
        phase_seconds=figures.phase_seconds,
        phase_cpu_s=figures.cpu.figures(),
        upload_bytes=upload,
        download_bytes=download,
        vector_bytes=(plan.padded_dim * plan.bits + 7) // 8,
        accuracy=evaluation.get("accuracy"),
        loss=evaluation.get("loss"),
        reported=learned.reported,
        released=learned.released,
        survivors=tuple(sorted(map(membership.number, completed.u3))),
        clips=learned.clips,
        next_clips=learned.next_clips,
        wrapped_share=learned.decoded.wrapping.share if plan.padded_dim >= FEWEST_VALUES else None,
        below_clip=tuple(learned.decoded.below),
        sum_sha256=None if learned.sum_sha256 is None else learned.sum_sha256.hex(),
        figures=further_figures(evaluation),
        **others,
    )
