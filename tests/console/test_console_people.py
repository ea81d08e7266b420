"""Roles, the file of users, sessions, tokens of forms, and the second person."""

import pytest
from argon2 import PasswordHasher

from txlayer.console.people import (
    PROPOSAL_COUNT_MAX,
    PROPOSAL_S,
    SESSION_COUNT_MAX,
    SESSION_COUNT_OF_PERSON_MAX,
    SESSION_S,
    USER_COUNT_MAX,
    FormTokens,
    Passwords,
    Person,
    Role,
    SecondPerson,
    Sessions,
    parse_users,
    user_line,
)
from txlayer.errors import ConfigError, UsageError
from txlayer.operate.operators import signature_of

ALICE, BOB, EVE = Person("alice", Role.SETTLE), Person("bob", Role.SETTLE), Person("eve", Role.LOOK)
PASSWORD = "correct horse battery"
HASH = user_line(ALICE, PASSWORD).split()[2]


# --- the file of users ------------------------------------------------------------------------------------------------


def test_a_line_that_the_command_makes_lets_its_person_in() -> None:
    users = parse_users(f"# people\n\n{user_line(ALICE, PASSWORD)}\n", name="--users")

    assert ALICE == Passwords(users).person("alice", PASSWORD)


@pytest.fixture(scope="module")
def passwords() -> Passwords:
    """Of alice, and of a person who comes through the proxy."""
    return Passwords(parse_users(f"alice settle {HASH}\nproxied settle -\n", name="--users"))


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", "wrong"),
        ("alice", ""),
        ("alice", PASSWORD + "\0"),
        ("Alice", PASSWORD),
        ("carol", PASSWORD),
        ("proxied", PASSWORD),
        ("proxied", "-"),
        ("alice", "x" * 100_000),
        ("alice", "\ud800"),
    ],
)
def test_nobody_else_gets_in(passwords: Passwords, name: str, password: str) -> None:
    assert passwords.person(name, password) is None


def test_a_password_in_the_file_is_not_readable_and_no_two_lines_are_alike() -> None:
    first, second = user_line(ALICE, PASSWORD), user_line(ALICE, PASSWORD)

    assert PASSWORD not in first
    assert first != second


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice settle",
        f"alice admin {HASH}",
        f"alice settle {HASH} more",
        f"al:ice settle {HASH}",
        f"{'a' * 48} settle {HASH}",
        f"../alice settle {HASH}",
        "alice settle password-in-the-clear",
        "alice settle $2b$12$abcdefghijklmnopqrstuv",
        f"alice settle {HASH.replace('argon2id', 'argon2i')}",
        f"alice settle {HASH.replace('m=19456', 'm=4000000')}",
        f"alice settle {HASH.replace('t=2', 't=1000')}",
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_not_shown(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2 is not a user") as raised:
        parse_users(f"# people\n{line}\n", name="--users")

    assert "password-in-the-clear" not in str(raised.value)
    assert "argon2" not in str(raised.value)


def test_a_file_has_each_user_once_and_only_so_many() -> None:
    many = "".join(f"user{n} look -\n" for n in range(USER_COUNT_MAX + 1))

    with pytest.raises(ConfigError, match="line 2 names a user twice"):
        parse_users("alice look -\nALICE settle -\n", name="--users")
    with pytest.raises(ConfigError, match="too many users"):
        parse_users(many, name="--users")
    with pytest.raises(ConfigError, match="no user"):
        parse_users("# nobody yet\n", name="--users")


@pytest.mark.parametrize("password", ["", "short", "x" * 2_000, "not\udcff UTF-8 at all", "two lines\nof a password"])
def test_a_password_that_is_too_short_or_too_long_gets_no_line(password: str) -> None:
    with pytest.raises(UsageError) as raised:
        user_line(ALICE, password)

    assert not password or password not in str(raised.value)


def test_a_hash_costs_what_owasp_recommends() -> None:
    assert not PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1).check_needs_rehash(HASH)


# --- sessions and forms -----------------------------------------------------------------------------------------------


def test_a_session_is_its_persons_until_it_is_too_old_or_closed() -> None:
    sessions = Sessions()
    first, second = sessions.open(ALICE, now_s=0.0), sessions.open(EVE, now_s=0.0)
    sessions.close(second)

    assert ALICE == sessions.person(first, now_s=SESSION_S - 1)
    assert sessions.person(second, now_s=1.0) is None
    assert sessions.person(first, now_s=SESSION_S) is None
    assert sessions.person(first, now_s=0.0) is None


def test_what_a_session_is_kept_under_does_not_open_it() -> None:
    sessions = Sessions()
    cookie = sessions.open(ALICE, now_s=0.0)

    assert cookie not in repr(vars(sessions))
    assert sessions.person(Sessions.key_of(cookie), now_s=0.0) is None


def test_of_many_sessions_the_oldest_end_first_and_those_of_the_same_person_before_others() -> None:
    sessions = Sessions()
    eve = sessions.open(EVE, now_s=0.0)
    alice = [sessions.open(ALICE, now_s=0.0) for _ in range(SESSION_COUNT_OF_PERSON_MAX + 1)]

    assert [None, ALICE] == [sessions.person(c, now_s=0.0) for c in alice[:2]]
    assert EVE == sessions.person(eve, now_s=0.0)

    others = [sessions.open(Person(f"user{n}", Role.LOOK), now_s=0.0) for n in range(SESSION_COUNT_MAX)]

    assert sessions.person(eve, now_s=0.0) is None
    assert sessions.person(others[0], now_s=0.0) is not None


def test_a_token_is_for_one_session_one_form_and_the_age_of_a_session() -> None:
    tokens = FormTokens()
    token = tokens.make(session="a", action="/tx/a%2Fb/commit", now_s=5.0)

    def is_good(text: str = token, *, session: str = "a", path: str = "/tx/a/b/commit", now_s: float = 6.0) -> bool:
        return tokens.is_good(text, session=session, path=path, now_s=now_s)

    assert is_good()
    assert not is_good(session="b")
    assert not is_good(path="/tx/a/b/rollback")
    assert not is_good(now_s=5.0 + SESSION_S + 1)
    assert not is_good(now_s=4.0)
    assert not is_good(FormTokens().make(session="a", action="/tx/a/b/commit", now_s=5.0))
    for wrong in ("", ".", token[:-1], token.replace("5.", "6."), f"-{token}", "é" * 70, f"{'f' * 99}.x"):
        assert not is_good(wrong)


# --- a second person --------------------------------------------------------------------------------------------------


def test_an_action_is_carried_out_once_and_by_another_person() -> None:
    second: SecondPerson[str] = SecondPerson()
    proposal = second.propose("commit order-1", by=ALICE, now_s=0.0)

    with pytest.raises(UsageError, match="alice proposed"):
        second.confirm(proposal.id, by=ALICE, now_s=1.0)
    with pytest.raises(UsageError, match="ALICE proposed"):
        second.confirm(proposal.id, by=Person("ALICE", Role.SETTLE), now_s=1.0)
    with pytest.raises(UsageError, match="eve may look"):
        second.confirm(proposal.id, by=EVE, now_s=1.0)
    assert proposal is second.confirm(proposal.id, by=BOB, now_s=1.0)
    with pytest.raises(UsageError, match="does not wait"):
        second.confirm(proposal.id, by=BOB, now_s=1.0)


def test_a_proposal_is_for_those_who_may_settle_and_ends() -> None:
    second: SecondPerson[str] = SecondPerson()
    with pytest.raises(UsageError, match="eve may look"):
        second.propose("commit order-1", by=EVE, now_s=0.0)
    old, withdrawn = (second.propose("commit order-1", by=ALICE, now_s=0.0) for _ in range(2))
    with pytest.raises(UsageError, match="eve may look"):
        second.withdraw(withdrawn.id, by=EVE)
    second.withdraw(withdrawn.id, by=BOB)

    assert [old] == second.waiting(now_s=PROPOSAL_S - 1)
    with pytest.raises(UsageError, match="too old"):
        second.confirm(old.id, by=BOB, now_s=PROPOSAL_S)
    assert [] == second.waiting(now_s=PROPOSAL_S)


def test_only_so_many_proposals_wait() -> None:
    second: SecondPerson[int] = SecondPerson()
    for number in range(PROPOSAL_COUNT_MAX):
        second.propose(number, by=ALICE, now_s=0.0)

    with pytest.raises(UsageError, match="actions wait"):
        second.propose(-1, by=ALICE, now_s=0.0)
    second.propose(-1, by=ALICE, now_s=PROPOSAL_S)


def test_the_longest_names_of_two_people_fit_into_an_op_line() -> None:
    first, other = (Person(letter * 47, Role.SETTLE) for letter in "ab")
    operator = SecondPerson[str]().propose("commit", by=first, now_s=0.0).operator(other)

    assert f"{operator}: ticket 12" == signature_of("console", operator=operator, reason="ticket 12")
