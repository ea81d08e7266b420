"""The people of the console: roles, the file of users, sessions, tokens of forms, and the confirmation by a second person.

Nothing here reads a request or a clock: the caller passes the time in seconds. Everything is kept in memory, so a restart
of the console ends all sessions.
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Generic, TypeVar
from urllib.parse import unquote

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from txlayer.errors import ConfigError, UsageError

T = TypeVar("T")


class Role(Enum):
    """What a person may do."""

    LOOK = "look"  #: see every page
    SETTLE = "settle"  #: the same, and act


@dataclass(frozen=True, slots=True)
class Person:
    """The author of a request. The name goes into the op line of an action."""

    name: str
    role: Role

    @property
    def may_settle(self) -> bool:
        return self.role is Role.SETTLE


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,46}")
"""A person's name: two of them, with ` with ` between, fit into an op line."""


# --- the file of users ------------------------------------------------------------------------------------------------

USER_COUNT_MAX = 500
WITHOUT_HASH = "-"  # in place of the hash of a person who comes through the proxy
PASSWORD_LENGTH_MIN = 12
"""Characters of a new password. Guessing one online takes years at the rate that the login page allows."""
PASSWORD_BYTES_MAX = 1_024
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
"""OWASP's recommendation for argon2id with little memory: the console has 100 MB."""
_COST_MAX = {"time_cost": 10, "memory_cost": 64 * 1024, "parallelism": 4}
"""A hash that costs more would let one login use up the memory or the processor."""


@dataclass(frozen=True, slots=True, repr=False)
class User:
    """One line of the file of users."""

    person: Person
    password_hash: str | None


def parse_users(text: str, *, name: str) -> dict[str, User]:
    """Read `NAME ROLE HASH` lines but empty ones and `#` comments; ConfigError: one is wrong; only its number is shown."""
    found: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            user = _user(line.split())
        except (ValueError, InvalidHashError):
            why = f"line {number} is not a user"
            raise ConfigError(why, name=name, expected="NAME look|settle HASH, as `console user` makes it") from None
        if any(user.person.name.casefold() == other.casefold() for other in found):
            raise ConfigError(f"line {number} names a user twice", name=name, expected="one line per user")
        found[user.person.name] = user
        if len(found) > USER_COUNT_MAX:
            raise ConfigError("too many users", name=name, expected=f"at most {USER_COUNT_MAX}")
    if not found:
        raise ConfigError("no user in it", name=name, expected="lines that `console user` makes")
    return found


def _user(words: list[str]) -> User:
    name, role, password_hash = words
    if NAME.fullmatch(name) is None:
        raise ValueError
    person = Person(name, Role(role))
    if password_hash == WITHOUT_HASH:
        return User(person, None)
    parameters = extract_parameters(password_hash)
    if parameters.type is not Type.ID or any(getattr(parameters, cost) > most for cost, most in _COST_MAX.items()):
        raise ValueError
    return User(person, password_hash)


def user_line(person: Person, password: str) -> str:
    """The line of the file of users for this person and password; UsageError: the name or the password cannot be used. Neither is shown."""
    if NAME.fullmatch(person.name) is None:
        raise UsageError("a name has 1 to 47 letters, digits and . _ @ + -, and begins with a letter or a digit")
    is_long_enough = len(password) >= PASSWORD_LENGTH_MIN
    if not is_long_enough or not password.isprintable() or len(password.encode()) > PASSWORD_BYTES_MAX:
        why = f"a password has {PASSWORD_LENGTH_MIN} printable characters or more, and {PASSWORD_BYTES_MAX:,} bytes at most"
        raise UsageError(why)
    return f"{person.name} {person.role.value} {_HASHER.hash(password)}"


class Passwords:
    """Compares passwords. A comparison takes some 30 ms of CPU and 19 MiB, also for a name that does not exist."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = users
        self._of_no_user = _HASHER.hash(secrets.token_hex())

    def person(self, name: str, password: str) -> Person | None:
        user = self._users.get(name)
        known = user.password_hash if user is not None else None
        try:
            _HASHER.verify(known or self._of_no_user, password.encode(errors="replace")[: PASSWORD_BYTES_MAX + 1])
        except (VerificationError, InvalidHashError):
            return None
        return user.person if user is not None and known is not None else None


# --- sessions and forms -----------------------------------------------------------------------------------------------

SESSION_S = 10 * 3600.0  # a session ends after this time, used or not: a long shift
SESSION_COUNT_MAX = 1_000
SESSION_COUNT_OF_PERSON_MAX = 10


class Sessions:
    """Who is logged in. A new session beyond a limit ends the oldest: that of the same person first."""

    def __init__(self) -> None:
        # Oldest first. The key is a digest of the cookie's value, so that nothing here opens a session.
        self._sessions: dict[str, tuple[Person, float]] = {}

    def open(self, person: Person, *, now_s: float) -> str:
        """The cookie's value for a new session of this person."""
        cookie = secrets.token_urlsafe(32)
        own = [key for key, (other, _) in self._sessions.items() if other.name == person.name]
        for key in own[: max(0, len(own) - SESSION_COUNT_OF_PERSON_MAX + 1)]:
            del self._sessions[key]
        while len(self._sessions) >= SESSION_COUNT_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[self.key_of(cookie)] = person, now_s + SESSION_S
        return cookie

    def person(self, cookie: str, *, now_s: float) -> Person | None:
        key = self.key_of(cookie)
        person, ends_s = self._sessions.get(key, (None, 0.0))
        if person is not None and now_s >= ends_s:
            del self._sessions[key]
            return None
        return person

    def close(self, cookie: str) -> None:
        """End this session; without one nothing happens."""
        self._sessions.pop(self.key_of(cookie), None)

    @staticmethod
    def key_of(cookie: str) -> str:
        """What identifies a session without opening it."""
        return sha256(cookie.encode(errors="replace")).hexdigest()


class FormTokens:
    """Tokens that show that a form came from a page of this console: each is for one session and one form's address."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def make(self, *, session: str, action: str, now_s: float) -> str:
        """The token for a form whose `action` attribute is this address."""
        return self._signed(f"{int(now_s):x}", session, unquote(action))

    def is_good(self, token: str, *, session: str, path: str, now_s: float) -> bool:
        """True if the token was made for this session and this decoded path within the age of a session."""
        made, _, _ = token.partition(".")
        if re.fullmatch(r"[0-9a-f]{1,16}", made) is None or not 0 <= now_s - int(made, 16) <= SESSION_S:
            return False
        return hmac.compare_digest(token.encode(errors="replace"), self._signed(made, session, path).encode())

    def _signed(self, made: str, session: str, path: str) -> str:
        content = "\0".join((made, session, path)).encode(errors="replace")
        return f"{made}.{hmac.new(self._secret, content, sha256).hexdigest()}"


# --- a second person --------------------------------------------------------------------------------------------------

PROPOSAL_S = 3600.0
"""An action that is not confirmed within this time must be proposed again: what it is about may have changed."""
PROPOSAL_COUNT_MAX = 100


@dataclass(frozen=True, slots=True)
class Proposal(Generic[T]):
    """An action that waits for the confirmation of a second person."""

    id: str
    action: T
    by: Person
    ends_s: float

    def operator(self, confirmed_by: Person) -> str:
        """Both names, as the op line of the action has them."""
        return f"{self.by.name} with {confirmed_by.name}"


class SecondPerson(Generic[T]):
    """Actions that one person proposes and another one confirms. One thread uses it."""

    def __init__(self) -> None:
        self._proposals: dict[str, Proposal[T]] = {}

    def propose(self, action: T, *, by: Person, now_s: float) -> Proposal[T]:
        """Keep the action until another person confirms it; UsageError: this one may not settle, or too many wait. Nothing was kept."""
        if not by.may_settle:
            raise UsageError(f"{by.name} may look, and not settle")
        if len(self.waiting(now_s=now_s)) >= PROPOSAL_COUNT_MAX:
            raise UsageError(f"{PROPOSAL_COUNT_MAX} actions wait for a second person; confirm or withdraw some first")
        made = Proposal(secrets.token_urlsafe(12), action, by, now_s + PROPOSAL_S)
        self._proposals[made.id] = made
        return made

    def confirm(self, proposal_id: str, *, by: Person, now_s: float) -> Proposal[T]:
        """Take the proposal out, to be carried out now; one confirmation gets it. UsageError: it is not there, or not for this person."""
        found = next((each for each in self.waiting(now_s=now_s) if each.id == proposal_id), None)
        if found is None:
            raise UsageError("this action does not wait for a confirmation: it was confirmed, withdrawn, or is too old")
        if not by.may_settle:
            raise UsageError(f"{by.name} may look, and not settle")
        if by.name.casefold() == found.by.name.casefold():
            raise UsageError(f"{by.name} proposed this action: another person must confirm it")
        return self._proposals.pop(found.id)

    def put_back(self, proposal: Proposal[T]) -> None:
        """Let it wait again: it was confirmed, and did not happen."""
        self._proposals[proposal.id] = proposal

    def withdraw(self, proposal_id: str, *, by: Person) -> None:
        """Drop a proposal; anybody who may settle can. Without it nothing happens. UsageError: this person may not settle."""
        if not by.may_settle:
            raise UsageError(f"{by.name} may look, and not settle")
        self._proposals.pop(proposal_id, None)

    def waiting(self, *, now_s: float) -> list[Proposal[T]]:
        """What waits for a confirmation, the oldest first."""
        self._proposals = {key: each for key, each in self._proposals.items() if now_s < each.ends_s}
        return list(self._proposals.values())
