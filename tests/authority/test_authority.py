"""The authority decides by proofs and by its own clock, whatever the coordinator shows, and never twice differently."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import authority.roster as signing
from authority.folder import AuthorityError, write_folder
from authority.invitations import revoke, withdraw
from authority.requests import REQUESTS_A_DAY, read_requests
from authority.roster import accept_terms, adopt, begin, history, package_of, sign_next
from authority.store import AuthorityStore, admitted, exclusive, locked
from runtime.durable import StorageError
from secagg.context import winners
from secagg.roster import InvalidRoster, RosterEntry, verify_roster
from tests.authority.authority_in_memory import DAY, HOUR, NOW, Coordinator, Office, make_office, participant
from tests.support.databases import query
from tests.support.ends_and_full_disks import killed
from tests.support.enrolment_port import document
from tests.support.issued_certificates import named_in
from wire.certificates import host_uri, identity_uri
from wire.join_code import JoinCode
from wire.roster_history import check_descent
from wire.study import read_draws


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return make_office(tmp_path / "authority")


# ---------------------------------------------------------------- joining


def test_a_code_brings_a_place_and_a_certificate(office: Office) -> None:
    alice = participant(1)
    request = alice.join(office.invite())
    visit = office.attend(request)
    assert [one.verdict for one in visit.judgements] == ["accept"]
    assert visit.signed == (2, 1)
    assert office.roster().entries == (RosterEntry(alice.identity.public, "laptop"),)
    answer = office.answer(request)
    assert (answer.accepted, answer.host, answer.roster_version) == (True, "laptop", 2)
    assert named_in(answer.certificate, office.folder.keys.tls.pem) == [identity_uri(alice.identity.public)]
    assert office.attend().signed is None


def test_without_signing_no_answer_is_published(office: Office) -> None:
    request = participant(1).join(office.invite())
    visit = office.attend(request, sign=False)
    assert (visit.signed, visit.waiting) == (None, 1)
    assert not office.is_answered(request)
    assert len(office.roster()) == 0
    assert office.attend().signed == (2, 1)
    assert office.is_answered(request)


def test_the_same_request_gets_the_same_answer(office: Office) -> None:
    """A coordinator replays it, in any order and number: judged once, certified once."""
    request = participant(1).join(office.invite())
    office.attend(request)
    first = office.coordinator.packages[-1].answers
    for _ in range(3):
        visit = office.attend(request, request)
        assert [one.verdict for one in visit.judgements] == ["known"]
        assert visit.signed is None
        assert office.coordinator.packages[-1].answers == first


def test_an_identity_may_ask_again_under_its_code(office: Office) -> None:
    """Its TLS key was lost before the answer came: it gets a new certificate and no second place."""
    alice, code = participant(1), office.invite()
    office.attend(alice.join(code))
    again = participant(1).join(code)
    assert again != alice.join(code)
    assert office.attend(again).signed is None
    answer = office.answer(again)
    assert (answer.accepted, answer.roster_version) == (True, 2)
    assert len(office.roster()) == 1


def test_a_code_is_good_for_one_identity(office: Office) -> None:
    code = office.invite()
    first, second = participant(1).join(code), participant(2).join(code)
    office.attend(first, second)
    answers = [office.answer(request) for request in (first, second)]
    assert sorted(answer.accepted for answer in answers if answer is not None) == [False, True]
    assert any("used by another participant" in answer.reason for answer in answers if answer is not None)
    assert len(office.roster()) == 1


def test_the_authoritys_clock_says_whether_a_code_has_expired(office: Office) -> None:
    """The request says it is from before; by the participant's word alone an old code that was found would do."""
    request = participant(1).join(office.invite(valid_s=HOUR), at=NOW)
    office.now += 4 * HOUR
    answer = office.judge(request)
    assert not answer.accepted
    assert "had expired 3 hours before the authority saw the request" in answer.reason
    assert len(office.roster()) == 0


def test_what_was_accepted_in_time_is_signed_later(office: Office) -> None:
    request = participant(1).join(office.invite(valid_s=HOUR))
    office.attend(request, sign=False)
    office.now += DAY
    assert office.attend().signed == (2, 1)


def test_a_request_without_the_secret_counts_for_nothing(office: Office) -> None:
    """The coordinator sees the code's id in an honest request and makes one of its own."""
    code = office.invite()
    forged = participant(2).join(_with_id_of(code))
    assert office.judge(forged).reason == "no invitation of this study has this join code: ask for a new one"
    honest = participant(1).join(code)
    assert office.judge(honest).accepted


def _with_id_of(code: JoinCode) -> JoinCode:
    class Guessed(JoinCode):
        @property
        def code_id(self) -> bytes:
            return code.code_id

    return Guessed(code.fingerprint, code.terms, bytes(16), code.expires)


def test_other_studies_codes_and_studies(office: Office, tmp_path: Path) -> None:
    other = make_office(tmp_path / "other")
    foreign = participant(1).join(other.invite())
    elsewhere = participant(2).join(office.invite(), study="trials")
    office.attend(foreign, elsewhere)
    reasons = [answer.reason for answer in office.answers().values()]
    assert any("no invitation" in reason for reason in reasons)
    assert any("authority of the study clinics" in reason for reason in reasons)
    assert len(office.roster()) == 0


def test_a_flood_of_nonsense_delays_no_request(office: Office) -> None:
    honest = participant(1).join(office.invite())
    stray = JoinCode.new(office.public, bytes(32), NOW + DAY, random.Random(5).randbytes)
    flood = [participant(seed).join(stray) for seed in range(100, 130)]
    noise = [b"", b"{}", b"\xff" * 9000, honest[:-1], honest + b" ", honest.replace(b"laptop", b"tablet")]
    visit = office.attend(*noise, *flood, honest, *noise)
    assert [one.verdict for one in visit.judgements].count("accept") == 1
    assert office.hosts() == {"laptop"}
    with locked(office.folder, 0) as store:
        assert len(store.waiting()) == 0
        assert all(store.judged(signed.id) is None for signed in read_requests(flood))  # they take no room


def test_one_request_that_breaks_stops_no_other(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    import authority.requests as requests

    bad, good = participant(1, "bad").join(office.invite()), participant(2, "good").join(office.invite())
    real = requests.look

    def breaks(store: Any, signed: Any, *others: Any) -> Any:
        if signed.request.host == "bad":
            raise RuntimeError("something odd")
        return real(store, signed, *others)

    monkeypatch.setattr(requests, "look", breaks)
    visit = office.attend(bad, good)
    assert {one.request.request.host: one.verdict for one in visit.judgements} == {"bad": "later", "good": "accept"}
    assert office.hosts() == {"good"}
    assert not office.is_answered(bad)


def test_places_are_counted(tmp_path: Path) -> None:
    """One more than the plan covers would make a roster that no coordinator can use."""
    office = make_office(tmp_path / "authority", places=1)
    first, second = participant(1).join(office.invite()), participant(2).join(office.invite())
    office.attend(first)
    assert "all 1 places" in office.judge(second).reason
    assert len(office.roster()) == 1


def test_numbers_of_places_go_by_admission_and_are_never_given_again(office: Office) -> None:
    """Not by identity, as the roster is sorted: then a newcomer would move others' parts of the data."""
    people = sorted((participant(seed, f"h{seed}") for seed in range(4)), key=lambda one: one.identity.public)
    for who in reversed(people[1:]):
        office.attend(who.join(office.invite()))
    office.revoke(people[1].host)  # the last
    office.attend(people[0].join(office.invite()))
    renewal = people[3].renew()
    office.attend(renewal)
    with locked(office.folder) as store:
        assert [store.member(who.identity.public).place for who in people] == [4, 3, 2, 1]  # type: ignore[union-attr]
    assert sorted(answer.place for answer in office.answers().values()) == [1, 1, 2, 3, 4]
    assert office.answer(renewal).place == 1


def test_one_identity_cannot_fill_the_disk(office: Office) -> None:
    alice, code = participant(1), office.invite()
    office.attend(alice.join(code))
    for number in range(REQUESTS_A_DAY + 3):
        office.attend(alice.renew(at=NOW + number))
    verdicts = [one.verdict for one in office.attend().judgements]
    assert verdicts == ["later"] * 4
    office.now += 2 * DAY
    assert [one.verdict for one in office.attend().judgements] == ["accept"] * 4


# ---------------------------------------------------------------- names


def test_names_are_never_shared(office: Office) -> None:
    """Two hosts of one name would be taken for one, and a certificate that names it would open both."""
    requests = [participant(seed).join(office.invite()) for seed in range(1, 4)]
    office.attend(*requests)
    taken = participant(9, "LAPTOP").join(office.invite())
    office.attend(taken)
    hosts = office.hosts()
    assert len(hosts) == 4
    assert "laptop" in hosts
    assert all(len(host) == len("laptop-123456") for host in hosts - {"laptop"})
    assert len({host.lower() for host in hosts}) == 4


def test_an_invitations_name_is_kept_for_its_holder(office: Office) -> None:
    code = office.invite("clinic-7")
    squatter = participant(1, "clinic-7").join(office.invite())
    office.attend(squatter)
    assert "clinic-7" not in office.hosts()
    office.attend(participant(2, "whatever").join(code))
    holder = participant(2).identity.public
    assert [entry.host for entry in office.roster().entries if entry.identity == holder] == ["clinic-7"]
    with pytest.raises(AuthorityError, match="is or was a participant's"):
        office.invite("Clinic-7")
    office.invite("clinic-8")
    with pytest.raises(AuthorityError, match="promised"):
        office.invite("clinic-8")
    with pytest.raises(AuthorityError, match="can't be a host's name"):
        office.invite("a b")


def test_a_revoked_hosts_name_is_not_given_again(office: Office) -> None:
    office.attend(participant(1).join(office.invite()))
    office.revoke("laptop")
    office.attend(participant(2).join(office.invite()))
    assert office.hosts() == {f"laptop-{participant(2).identity.public.hex()[:6]}"}


def test_long_wishes_stay_names(office: Office) -> None:
    office.attend(*(participant(seed, "a" * 64).join(office.invite()) for seed in (1, 2)))
    assert len(office.hosts()) == 2
    assert max(map(len, office.hosts())) == 64


# ---------------------------------------------------------------- renewal and revocation


def test_a_certificate_is_renewed_for_members_of_the_roster(office: Office) -> None:
    alice, stranger = participant(1), participant(2)
    office.attend(alice.join(office.invite()))
    request, refused = alice.renew(), stranger.renew()
    assert office.attend(request, refused).signed is None
    answer, other = office.answer(request), office.answer(refused)
    assert named_in(answer.certificate, office.folder.keys.tls.pem) == [identity_uri(alice.identity.public)]
    assert other.reason == "this identity is not on the study's roster"


def test_hosts_made_with_the_study_keep_certificates_of_the_host(tmp_path: Path) -> None:
    office = make_office(tmp_path / "authority")
    folder = write_folder(tmp_path / "second", office.folder.settings, office.folder.keys)
    alice = participant(1)
    with locked(folder, 0) as store:
        begin(store, [RosterEntry(alice.identity.public, "host-01")], NOW)
        with pytest.raises(AuthorityError, match="has signed rosters already"):
            begin(store, [], NOW)
    second = Office(folder)
    request = alice.renew()
    assert named_in(second.judge(request).certificate, folder.keys.tls.pem) == [host_uri("host-01")]


def test_a_revoked_participant_is_struck_off(office: Office) -> None:
    alice, bob = participant(1, "alice"), participant(2, "bob")
    codes = office.invite(), office.invite()
    office.attend(alice.join(codes[0]), bob.join(codes[1]))
    with locked(office.folder, 0) as store:
        assert [member.host for member in revoke(store, "alice", NOW)] == ["alice"]
        with pytest.raises(AuthorityError, match="was revoked before"):
            revoke(store, "alice", NOW)
        with pytest.raises(AuthorityError, match="no member of the roster is called carol"):
            revoke(store, "carol", NOW)
    assert office.attend().signed == (3, 1)
    assert office.hosts() == {"bob"}
    again = [alice.renew(), participant(1, "alice").join(codes[0]), participant(1, "alice").join(office.invite())]
    office.attend(*again)
    for request in again:
        assert "was revoked" in office.answer(request).reason
    assert office.hosts() == {"bob"}


def test_a_revocation_holds_before_it_is_signed(office: Office) -> None:
    """Nothing else at the authority stops a fresh certificate for a revoked identity until the next version."""
    alice = participant(1, "alice")
    office.attend(alice.join(office.invite()))
    office.revoke("alice")
    office.attend(renewed := alice.renew(), again := alice.join(office.invite()), sign=False)
    assert [office.answer(one).accepted for one in (renewed, again)] == [False, False]
    waits = participant(2)
    office.attend(waits.join(office.invite()), early := waits.renew(), sign=False)  # no signed roster lists it yet
    assert office.answer(early).reason == "this identity is not on the study's roster"


def test_revoked_before_it_was_listed(office: Office) -> None:
    request = participant(1).join(office.invite())
    office.attend(request, sign=False)
    office.revoke(participant(1).identity.public.hex()[:8])
    assert office.attend().signed is None  # nothing has changed
    assert "revoked before it was listed" in office.answer(request).reason


def test_members_are_found_by_name_or_identity(tmp_path: Path) -> None:
    office = make_office(tmp_path / "authority")
    folder = write_folder(tmp_path / "second", office.folder.settings, office.folder.keys)
    people = [participant(seed).identity.public for seed in range(20)]
    with locked(folder, 0) as store:
        begin(store, [RosterEntry(one, f"host-{index % 2}") for index, one in enumerate(people)], NOW)
        assert [store.member(one).place for one in people] == list(range(1, len(people) + 1))  # type: ignore[union-attr]
        with pytest.raises(AuthorityError, match="host-0 means 10 identities"):
            revoke(store, "host-0", NOW)
        assert len(revoke(store, people[1].hex()[:10].upper(), NOW)) == 1
        assert len(revoke(store, "host-1", NOW, whole_host=True)) == 9
        with pytest.raises(AuthorityError, match="no member"):
            revoke(store, people[0].hex()[:3], NOW)
        assert sum(member.revoked is None for member in store.members()) == 10


def test_an_invitation_can_be_taken_back(office: Office) -> None:
    code = office.invite("clinic-7")
    with locked(office.folder, 0) as store:
        taken = withdraw(store, "clinic-7", NOW)
        assert taken is not None
        assert taken.code_id == code.code_id
        assert withdraw(store, "clinic-7", NOW) is None
    request = participant(1).join(code)
    assert "withdrawn" in office.judge(request).reason


# ---------------------------------------------------------------- versions


def test_a_version_that_changes_nothing_is_not_signed(office: Office) -> None:
    office.attend()
    office.attend()
    assert office.roster().version == 1
    assert office.coordinator.packages[-1].answers == ()
    assert office.coordinator.version == 1


def test_no_statement_is_signed_before_one_is_due(office: Office) -> None:
    """A visit each second would write to the folder each second, and an older copy of it be behind."""
    with locked(office.folder) as store:
        accept_terms(store, replace(document(), study="clinics", roster_valid_s=600).to_bytes(), NOW)
    office.attend()
    for passed, packages in ((299, 1), (2, 2), (600, 3), (1, 3)):
        office.now += passed
        before = hashlib.sha256(office.folder.state.read_bytes()).digest()
        office.attend()
        assert len(office.coordinator.packages) == packages
        assert (hashlib.sha256(office.folder.state.read_bytes()).digest() == before) == (passed in (299, 1))


def test_what_was_lost_on_the_way_is_published_again(office: Office) -> None:
    request = participant(1).join(office.invite())
    office.coordinator.takes = False
    with pytest.raises(ConnectionError):
        office.attend(request)
    before = office.roster()
    assert before.version == 2
    office.coordinator.takes = True
    assert office.attend().signed is None
    assert office.roster() == before
    answer = office.answer(request)
    assert answer.accepted
    # The coordinator loses its disk: it shows the request again, and gets the same answer again.
    packages = len(office.coordinator.packages)
    office.attend(request)
    assert len(office.coordinator.packages) == packages + 1
    assert office.answer(request) == answer


def test_seeds_are_drawn_after_the_list_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that exist while requests are still judged would let a reader of them choose who joins a cohort."""
    office = make_office(tmp_path / "authority", draws=5)
    order: list[str] = []
    drawn, listed = signing.Draws.draw, AuthorityStore.members
    monkeypatch.setattr(signing.Draws, "draw", lambda *given: order.append("draw") or drawn(*given))
    monkeypatch.setattr(AuthorityStore, "members", lambda store: order.append("list") or listed(store))
    office.attend(*(participant(seed, f"h{seed}").join(office.invite()) for seed in range(4)))
    assert order[-1] == "draw"
    roster, lottery = office.roster(), office.coordinator.packages[-1].lottery_file
    assert roster.lottery is not None
    assert (roster.version, roster.lottery.draws) == (2, 5)

    class Plan:
        drawn = True

    draws = read_draws(roster, lottery, Plan())  # type: ignore[arg-type]
    assert draws is not None
    assert len(set(draws.seeds)) == 5
    assert len(winners(roster, 5, draws.ticket(5), 2)) == 2
    office.revoke("h1")
    office.attend()
    # Seeds of old versions are let go of.
    assert query(office.folder.state, "SELECT count(lottery) FROM versions") == [(1,)]
    again = office.roster()
    assert again.lottery is not None
    assert again.lottery.root != roster.lottery.root
    assert verify_roster(office.coordinator.packages[0].roster_file, office.public).version == 2


def test_a_version_is_signed_once(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signing first and storing after would let a crash in between bring a second roster of the same number."""
    signed: list[Any] = []
    real, write = signing.sign_roster, AuthorityStore.write
    monkeypatch.setattr(signing, "sign_roster", lambda roster, key: signed.append(roster) or real(roster, key))
    left: list[tuple[int, bytes]] = []
    for seed in range(6):
        try:
            with locked(office.folder, 0) as store:
                # The process ends after the store is written, or before.
                monkeypatch.setattr(AuthorityStore, "write", _then_crash(write) if seed % 2 else killed)
                store._store.submit(admitted(participant(seed).identity.public, f"h{seed}", True, NOW)).result()
                sign_next(store, NOW)
        except KeyboardInterrupt:
            pass
        finally:
            monkeypatch.setattr(AuthorityStore, "write", write)
        with locked(office.folder, 0) as store:
            newest = store.newest()
            assert newest is not None
            left.append((newest.version, newest.roster))
    assert [version for version, _ in left] == [1, 2, 2, 3, 3, 4]
    assert len({version for version, _ in left}) == len(set(left))
    assert len(signed) > 3


def _then_crash(real: Any) -> Any:
    def write(*given: Any) -> None:
        real(*given)
        raise KeyboardInterrupt

    return write


def test_a_full_disk_leaves_nothing_half_signed(office: Office) -> None:
    request = participant(1).join(office.invite())
    office.attend(request, sign=False)
    with locked(office.folder, 0) as store:
        pages = store._store.read("PRAGMA page_count")[0][0]
        store._store._connection.execute(f"PRAGMA max_page_count={pages}")
        store.folder = replace(office.folder, settings=office.folder.settings.model_copy(update={"draws": 2000}))
        with pytest.raises(StorageError, match="full"):
            sign_next(store, NOW)
        newest = store.newest()
        assert newest is not None
        assert newest.version == 1
        assert len(store.waiting()) == 1
        assert store.unpublished() == []
    assert office.attend().signed == (2, 1)


def test_a_coordinator_that_claims_a_later_version(office: Office) -> None:
    """A folder that was restored from an older copy would sign a number again."""
    office.coordinator.version = 7
    request = participant(1).join(office.invite())
    with pytest.raises(AuthorityError, match=r"has version 7 .* signed only 1.*--after FOLDER"):
        office.attend(request)
    assert office.roster().version == 1
    assert office.coordinator.packages == []


def test_a_folder_from_an_older_copy_goes_on_from_the_newest_roster(tmp_path: Path) -> None:
    """A restored authority that signs on from its own last version makes a fork, which clients refuse."""
    office = make_office(tmp_path / "authority")
    alice, bob, carol = (participant(seed, name) for seed, name in enumerate(("alice", "bob", "carol"), 1))
    office.attend(alice.join(office.invite()))
    copy, again = (shutil.copytree(office.folder.path, tmp_path / name) for name in ("copy", "again"))
    office.attend(bob.join(office.invite()))
    office.revoke("alice")
    office.attend()
    published, seen = office.coordinator.packages[-1], office.roster()
    restored = Office(replace(office.folder, path=copy), coordinator=office.coordinator, rng=random.Random(2))
    with pytest.raises(AuthorityError, match="restored from an older copy"):
        restored.attend()
    restored.coordinator = Coordinator()  # that lies about its version
    restored.attend(carol.join(restored.invite()), carol.renew(), sign=True)
    restored.attend(participant(4).join(restored.invite()))
    fork = restored.roster()
    assert (seen.version, fork.version) == (4, 4)
    with locked(restored.folder) as store, pytest.raises(InvalidRoster, match="another version 4"):
        check_descent((seen.version, seen.digest()), fork, history(store))

    right = Office(replace(office.folder, path=again), rng=random.Random(3))
    with locked(right.folder) as store:
        assert adopt(store, published.roster_file, published.history_file, NOW).version == 4
        with pytest.raises(AuthorityError, match="isn't a later one"):
            adopt(store, published.roster_file, published.history_file, NOW)
    assert (right.hosts(), right.roster()) == ({"bob"}, seen)
    right.attend(carol.join(right.invite()))
    newest = right.roster()
    with locked(right.folder) as store:
        check_descent((seen.version, seen.digest()), newest, history(store))
    assert right.hosts() == {"bob", "carol"}


def test_a_folder_from_an_older_copy_takes_no_older_terms_and_no_code_twice(tmp_path: Path) -> None:
    office = make_office(tmp_path / "authority")
    later = replace(document(rounds=3), study="clinics", roster_valid_s=600)
    first, second = replace(document(), study="clinics").to_bytes(), later.to_bytes()
    code = office.invite()
    copy = Office(
        replace(office.folder, path=shutil.copytree(office.folder.path, tmp_path / "copy")), rng=random.Random(2)
    )
    with locked(office.folder) as store:  # by a clock that went back a little
        accept_terms(store, second, NOW - 300)
        assert store.terms() == second
    office.attend(participant(1, "alice").join(code))
    published = office.coordinator.packages[-1]
    files = published.roster_file, published.history_file, NOW
    with locked(copy.folder) as store:
        for other in (None, first):
            with pytest.raises(AuthorityError, match="carry the coordinator"):
                adopt(store, *files, other)
        adopt(store, *files, second)
        assert store.terms() == second
        statement = package_of(store, NOW)
    assert statement is not None
    fields = json.loads(statement[0].newest_file)
    assert fields["until"] - fields["signed"] == 600
    copy.coordinator.version = copy.roster().version
    copy.attend(participant(2, "mallory").join(code))
    assert copy.hosts() == {"alice"}


def test_a_statement_from_the_future_shows_that_the_clock_was_wrong(office: Office) -> None:
    office.now += 365 * DAY
    office.coordinator.version = 0
    office.attend()
    office.now -= 365 * DAY
    with pytest.raises(AuthorityError, match="clock is behind"):
        office.attend()


# ---------------------------------------------------------------- the folder


def test_a_clock_that_has_gone_back_decides_nothing(office: Office) -> None:
    """An invitation from the future: by that clock expired codes would be good again."""
    request = participant(1).join(office.invite(valid_s=HOUR))
    office.now -= 2 * DAY
    for step in (lambda: office.attend(request), office.invite):
        with pytest.raises(AuthorityError, match="clock is behind"):
            step()
    office.now += 2 * DAY - 300  # a little is forgiven
    assert office.attend().signed == (2, 1)


def test_two_processes_on_one_folder(office: Office) -> None:
    with (
        exclusive(office.folder.state.with_name("authority.lock"), 0),
        pytest.raises(AuthorityError, match="another process is using"),
    ):
        office.invite()
    office.invite()
