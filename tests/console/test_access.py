"""Who gets in: where the console listens, whose requests it answers, and what each of its guards refuses."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest
from argon2 import PasswordHasher
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.support.asgi import Answer, ask
from txlayer.adapters.telemetry import set_up_logging
from txlayer.console.access import LOGIN_BURST, LOGIN_BYTES_MAX, AccessRules, parse_proxy, protected
from txlayer.console.people import SESSION_S, Person, Role, parse_users, user_line
from txlayer.errors import ConfigError

PASSWORD = "correct horse battery"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
"""What a hash costs decides none of these tests, and most of them log in."""
USERS = parse_users(
    "\n".join(
        f"{name} {role} {CHEAP.hash(PASSWORD)}"
        for name, role in (("alice", "settle"), ("bob", "settle"), ("eve", "look"))
    ),
    name="--users",
)
PROXY, OUTSIDE = "10.0.0.5", "10.0.0.6"
PROXIES = (parse_proxy(PROXY),)
NAME = "console.example.org"


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.console.people._HASHER", CHEAP)


async def show(request: Request) -> Response:
    person = request.state.person
    token = request.state.form_token("/settle")
    return JSONResponse({"name": person.name, "may_settle": person.may_settle, "token": token})


async def act(request: Request) -> Response:
    return JSONResponse({"done by": request.state.person.name, "form": dict(request.state.form)})


async def fail(_: Request) -> Response:
    raise ValueError("secret-in-an-error\nforged line")


def console(clock: Clock | None = None, **rules: object) -> ASGIApp:
    app = Starlette(
        routes=[
            Route("/", show),
            Route("/fail", fail),
            Route("/settle", act, methods=["POST"]),
            Route("/tx/{id:path}/commit", act, methods=["POST"]),
            Route("/tx/{id:path}/values", act, methods=["POST"]),
            Route("/static/console.css", lambda _: Response("css", headers={"Cache-Control": "public"})),
        ]
    )
    return protected(app, AccessRules(**rules), looks=(r"/tx/[^/]+/values",), clock=clock or Clock())  # type: ignore[arg-type]  # the tests' own


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def with_users(clock: Clock | None = None, **more: object) -> ASGIApp:
    return console(clock, **{"users": USERS, "is_writable": True, **more})


def log_in(app: ASGIApp, name: str = "alice", password: str = PASSWORD, **more: object) -> Answer:
    page = ask(app, "/login?next=%2Ftransactions%3Fgroup%3Dshop", **more)  # type: ignore[arg-type]  # passed on
    fields = {"name": name, "password": password, "form_token": page.form_token, "next": "/transactions?group=shop"}
    return ask(app, "/login", form=fields, **more)  # type: ignore[arg-type]  # passed on


def token_of(app: ASGIApp, cookie: str) -> str:
    text = ask(app, "/", headers={"cookie": cookie}).text
    return text.partition('"token":"')[2].partition('"')[0]


# --- where it may listen ----------------------------------------------------------------------------------------------


@pytest.mark.threat("log in to the machine of a console without people")
def test_without_options_only_this_machine_reaches_the_console_and_changes_nothing() -> None:
    rules = AccessRules()
    page = ask(console(), "/")

    assert "127.0.0.1" == rules.host
    assert '"may_settle":false' in page.text


@pytest.mark.threat("log in to the machine of a console without people")
@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"host": "0.0.0.0"}, "read and change what browsers send"),
        ({"host": ""}, "read and change"),
        ({"host": "::", "users": USERS}, "read and change"),
        ({"host": "console.example.org", "users": USERS}, "read and change"),
        ({"host": "10.0.0.1", "is_tls": True}, "every client of the network"),
        ({"host": "10.0.0.1", "proxies": PROXIES}, "every client of the network"),
        ({"proxies": PROXIES}, "every client of the network"),
        ({"host": "10.0.0.1", "is_tls": True, "identity_header": "X-User"}, "every client could send it"),
        ({"identity_header": "X-User"}, "every client could send it"),
        ({"proxies": PROXIES, "identity_header": "Host"}, "not a header of a proxy"),
        ({"proxies": PROXIES, "identity_header": "X User"}, "not a header of a proxy"),
        ({"users": parse_users("carol look -", name="")}, "has no password"),
        ({"users": parse_users(user_line(Person("e", Role.LOOK), PASSWORD), name=""), "is_writable": True}, "nobody"),
        ({"proxies": PROXIES, "identity_header": "X-User", "is_writable": True}, "nobody may settle"),
        ({"needs_second_person": True, "is_writable": True}, "no second person"),
        ({"needs_second_person": True, "users": USERS}, "no second person"),
    ],
)
def test_what_is_not_safe_does_not_start(rules: Mapping[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        AccessRules(**rules)  # type: ignore[arg-type]  # the case's own


@pytest.mark.parametrize(
    "rules",
    [
        {"host": "localhost"},
        {"host": "127.0.0.9", "is_writable": True},
        {"host": "::1"},
        {"users": USERS},
        {"host": "0.0.0.0", "is_tls": True, "users": USERS},
        {"host": "0.0.0.0", "proxies": PROXIES, "users": USERS, "is_writable": True, "needs_second_person": True},
        {"host": "10.0.0.1", "proxies": PROXIES, "identity_header": "X-User"},
    ],
)
def test_what_is_safe_starts(rules: Mapping[str, object]) -> None:
    AccessRules(**rules)  # type: ignore[arg-type]  # the case's own


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "proxy.example.org", "10.0.0.5/8", ""])
def test_a_proxy_is_an_address_and_not_everything(text: str) -> None:
    with pytest.raises(ConfigError, match="not the address of a proxy"):
        parse_proxy(text)


# --- the proxy's header -----------------------------------------------------------------------------------------------


def proxied(**more: Any) -> ASGIApp:
    return console(host="0.0.0.0", proxies=PROXIES, identity_header="X-User", users=USERS, public_names={NAME}, **more)


def test_a_proxy_says_who_asks_and_the_file_what_the_person_may() -> None:
    app = proxied(is_writable=True)

    known = ask(app, "/", headers={"X-User": "alice"}, client=PROXY, host=NAME)
    unknown = ask(app, "/", headers={"X-User": "zoe@example.org"}, client=PROXY, host=NAME)

    assert '"name":"alice","may_settle":true' in known.text
    assert '"name":"zoe@example.org","may_settle":false' in unknown.text


@pytest.mark.threat("reach the port of the console")
@pytest.mark.parametrize("client", [OUTSIDE, "127.0.0.1", "::1", "::ffff:10.0.0.6", ""])
@pytest.mark.parametrize("is_tls", [False, True])
def test_the_header_of_a_person_counts_from_no_other_address(client: str, *, is_tls: bool) -> None:
    app = proxied(is_tls=is_tls, is_writable=True)

    answer = ask(app, "/", headers={"X-User": "alice"}, client=client, host=NAME)

    assert 403 == answer.status
    assert "alice" not in answer.text


def test_without_tls_other_addresses_than_the_proxys_get_nothing() -> None:
    assert 403 == ask(proxied(), "/login", client=OUTSIDE, host=NAME).status
    assert 200 == ask(proxied(is_tls=True), "/login", client=OUTSIDE, host=NAME, scheme="https").status


@pytest.mark.parametrize(
    "names", [("alice", "bob"), ("alice, bob",), ("",), ("<script>",), ("alice\x00",), ("a" * 48,), ("alice: x",)]
)
def test_a_proxy_that_names_no_person_or_more_than_one_is_refused(names: tuple[str, ...]) -> None:
    # A proxy that adds its header to that of the client, for example.
    headers = [("X-User", name) for name in names]

    assert 403 == ask(proxied(), "/", headers=headers, client=PROXY, host=NAME).status


def test_a_header_of_a_proxy_moves_no_address_into_the_list() -> None:
    headers = {"X-Forwarded-For": PROXY, "Forwarded": f"for={PROXY}", "X-User": "alice"}

    assert 403 == ask(proxied(), "/", headers=headers, client=OUTSIDE, host=NAME).status


# --- logging in and out -----------------------------------------------------------------------------------------------


def test_a_person_logs_in_sees_a_page_acts_and_logs_out() -> None:
    app = with_users()
    redirected = ask(app, "/transactions?group=shop")
    entered = log_in(app)
    cookie = {"cookie": entered.cookie}
    page = ask(app, "/", headers=cookie)
    done = ask(app, "/settle", form={"form_token": token_of(app, entered.cookie), "id": "a/b"}, headers=cookie)

    assert (303, "/login?next=%2Ftransactions%3Fgroup%3Dshop") == (redirected.status, redirected.headers["location"])
    assert (303, "/transactions?group=shop") == (entered.status, entered.headers["location"])
    assert '"name":"alice","may_settle":true' in page.text
    assert '"done by":"alice"' in done.text


def test_after_logging_out_the_session_opens_nothing() -> None:
    app = with_users()
    cookie = {"cookie": log_in(app).cookie}
    answered = ask(app, "/logout", form={"form_token": token_for(app, cookie, "/logout")}, headers=cookie)

    assert 303 == answered.status
    assert "Max-Age=0" in answered.headers["set-cookie"]
    assert 303 == ask(app, "/", headers=cookie).status


def token_for(app: ASGIApp, cookie: Mapping[str, str], action: str) -> str:
    """What a page of the app would write into a form with this action."""
    made = []

    async def page(request: Request) -> Response:
        made.append(request.state.form_token(action))
        return Response()

    access = app._app._app  # type: ignore[attr-defined]  # behind headers and limits
    before, access._app = access._app, Starlette(routes=[Route("/", page)])
    ask(app, "/", headers=cookie)
    access._app = before
    return str(made[0])


def test_a_session_ends_by_age() -> None:
    clock = Clock()
    app = with_users(clock)
    cookie = {"cookie": log_in(app).cookie}
    clock.now_s += SESSION_S - 1
    before = ask(app, "/", headers=cookie)
    clock.now_s += 2

    assert 200 == before.status
    assert 303 == ask(app, "/", headers=cookie).status


def test_the_cookie_is_for_this_site_alone_and_out_of_reach_of_scripts() -> None:
    here = log_in(with_users()).headers["set-cookie"].lower()
    there = (
        log_in(
            with_users(host="0.0.0.0", is_tls=True, public_names={NAME}),
            scheme="https",
            host=f"{NAME}:8443",
            client=OUTSIDE,
        )
        .headers["set-cookie"]
        .lower()
    )

    for cookie in (here, there):
        assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "domain" not in cookie
    assert "secure" not in here
    assert "secure" in {part.strip() for part in there.split(";")}
    assert there.startswith("__host-")


def test_behind_a_proxy_the_cookie_is_secure() -> None:
    app = with_users(host="0.0.0.0", proxies=PROXIES, public_names={NAME})

    entered = log_in(app, client=PROXY, host=NAME, headers={"origin": f"https://{NAME}"})

    assert "; secure" in entered.headers["set-cookie"].lower()


@pytest.mark.threat("reach the port of the console")
def test_a_wrong_password_is_refused_alike_for_known_and_unknown_names() -> None:
    app = with_users()
    known, unknown = log_in(app, password="wrong horse battery"), log_in(app, name="zoe")

    assert 403 == known.status == unknown.status
    assert known.text.replace(known.form_token, "") == unknown.text.replace(unknown.form_token, "")
    assert "set-cookie" not in known.headers


def test_logging_in_ends_the_session_before_and_makes_a_new_one() -> None:
    app = with_users()
    first = log_in(app).cookie
    second = log_in(app, headers={"cookie": first}).cookie

    assert first != second
    assert 303 == ask(app, "/", headers={"cookie": first}).status


@pytest.mark.threat("reach the port of the console")
def test_a_login_page_with_any_query_is_the_login_page_and_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    page = ask(with_users(), "/login?" + "&".join(f"x{number}=1" for number in range(100)) + "&next=%2Faudit")

    assert (200, True, "") == (page.status, 'name="next" value="/audit"' in page.text, caplog.text)


@pytest.mark.threat("reach the port of the console")
def test_a_client_that_guesses_waits_and_others_do_not() -> None:
    clock = Clock()
    app = with_users(clock)
    guessed = [log_in(app, password=f"wrong horse battery {n}").status for n in range(int(LOGIN_BURST) + 2)]
    honest = log_in(app, client="127.0.0.2")
    clock.now_s += 4

    assert [403] * int(LOGIN_BURST) + [429, 429] == guessed
    assert 303 == honest.status
    assert 303 == log_in(app).status


def test_behind_a_proxy_each_client_has_its_own_attempts() -> None:
    app = with_users(host="0.0.0.0", proxies=PROXIES, public_names={NAME})

    def attempt(address: str, password: str) -> int:
        headers = {"x-forwarded-for": f"1.2.3.4, {address}", "origin": f"https://{NAME}"}
        return log_in(app, password=password, client=PROXY, host=NAME, headers=headers).status

    guessed = [attempt("192.0.2.1", "wrong horse battery") for _ in range(int(LOGIN_BURST) + 1)]

    assert 429 == guessed[-1]
    assert 303 == attempt("192.0.2.2", PASSWORD)


@pytest.mark.threat("reach the port of the console")
def test_many_logins_at_once_are_refused_before_they_cost_anything() -> None:
    app = with_users()
    page = ask(app, "/login")
    app._app._app._login_count = 16  # type: ignore[attr-defined]  # as many as wait at most

    answer = ask(app, "/login", form={"name": "alice", "password": PASSWORD, "form_token": page.form_token})

    assert 503 == answer.status
    assert "2" == answer.headers["retry-after"]


def test_a_login_form_is_small_and_of_this_console() -> None:
    app = with_users()
    fields = {"name": "alice", "password": PASSWORD}

    assert 403 == ask(app, "/login", form=fields).status
    assert 413 == ask(app, "/login", form={**fields, "more": "x" * LOGIN_BYTES_MAX}).status
    assert 415 == ask(app, "/login", form=fields, headers={"content-type": "text/plain"}).status


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "/a\nb", "", "/a\\b"]
)
def test_a_login_leads_to_a_page_of_this_console(target: str) -> None:
    app = with_users()
    token = ask(app, "/login").form_token
    fields = {"name": "alice", "password": PASSWORD, "form_token": token, "next": target}

    assert "/" == ask(app, "/login", form=fields).headers["location"]


def test_what_stands_in_the_address_of_the_login_page_is_text() -> None:
    page = ask(with_users(), "/login?next=%2F%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E")

    assert "<script>" not in page.text


def test_a_link_from_another_site_leads_to_its_page_although_the_cookie_is_strict() -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    page = ask(with_users(), "/tx/a%2Fb?since=1h", headers=headers)

    assert 200 == page.status
    assert 'http-equiv="refresh" content="0; url=/tx/a/b?since=1h"' in page.text


@pytest.mark.parametrize("path", ["//evil.example/", "/%5Cevil.example", "/%2F/evil.example"])
def test_no_path_leads_from_there_to_another_site(path: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    page = ask(with_users(), path, headers=headers)

    assert re.search(r"url=(/\"|/%5C)", page.text)


def test_a_script_without_a_session_is_not_led_to_the_login_page() -> None:
    answer = ask(with_users(), "/", headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"})

    assert 401 == answer.status


# --- roles ------------------------------------------------------------------------------------------------------------


@pytest.mark.threat("log in to the console with the role `look`")
@pytest.mark.parametrize(("name", "is_writable"), [("eve", True), ("alice", False)])
def test_a_person_who_may_look_or_a_console_without_allow_writes_acts_on_nothing(
    name: str, *, is_writable: bool
) -> None:
    app = with_users(is_writable=is_writable)
    cookie = log_in(app, name).cookie
    answer = ask(app, "/settle", form={"form_token": token_of(app, cookie)}, headers={"cookie": cookie})

    assert 403 == answer.status


@pytest.mark.threat("log in to the console with the role `look`")
@pytest.mark.parametrize(
    "path",
    [
        "/tx/a/commit",
        "/tx/a/values/../commit",
        "/tx/a%2Fvalues/commit",
        "/tx/a/values%2f..%2fcommit",
        "/tx/a/commit?x=/tx/a/values",
        "//tx/a/values",
        "/static/../tx/a/commit",
        "/login/../settle",
        "/SETTLE",
        "/tx/%2e%2e/%2e%2e/values",
        "/tx/a%0a/values",
    ],
)
def test_no_form_of_a_path_gives_a_person_who_may_look_an_action(path: str) -> None:
    app = with_users()
    cookie = {"cookie": log_in(app, "eve").cookie}
    fields = {"form_token": token_for(app, cookie, path.partition("?")[0])}

    assert "done by" not in ask(app, path, form=fields, headers=cookie).text


def test_a_form_that_only_shows_is_for_those_who_may_look_too() -> None:
    app = with_users()
    cookie = {"cookie": log_in(app, "eve").cookie}
    fields = {"form_token": token_for(app, cookie, "/tx/a/values")}

    assert '"done by":"eve"' in ask(app, "/tx/a/values", form=fields, headers=cookie).text


@pytest.mark.parametrize("path", ["/", "/settle", "/tx/a/values", "/logout", "/static/console.css", "/nothing"])
def test_nobody_posts_without_a_session(path: str) -> None:
    assert ask(with_users(), path, form={}).status in (401, 404, 405)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_there_are_no_other_methods(method: str) -> None:
    assert 405 == ask(console(), "/", method=method).status


# --- other sites ------------------------------------------------------------------------------------------------------


def post(headers: Mapping[str, str]) -> int:
    """The status of a good form of a person who may settle, sent with these headers."""
    app = with_users()
    cookie = log_in(app).cookie
    fields = {"form_token": token_of(app, cookie)}
    return ask(app, "/settle", form=fields, headers={"cookie": cookie, **headers}).status


@pytest.mark.threat("bring a person who uses the console to a page of one's own")
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://127.0.0.1:8080.evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "", "sec-fetch-site": "cross-site"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
    ],
)
def test_a_form_of_another_site_is_refused_although_all_else_is_right(headers: Mapping[str, str]) -> None:
    assert 403 == post(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:8080"},
        {"sec-fetch-site": "same-origin"},
        # What a browser sends with a form of a page that says no-referrer.
        {"origin": "null", "sec-fetch-site": "same-origin"},
    ],
)
def test_a_form_of_this_console_is_taken(headers: Mapping[str, str]) -> None:
    assert 200 == post(headers)


def test_beyond_this_machine_a_page_that_was_read_in_plain_text_is_another_site() -> None:
    app = with_users(host="0.0.0.0", is_tls=True, public_names={NAME})

    answer = log_in(app, scheme="https", host=NAME, headers={"origin": f"http://{NAME}"})

    assert 403 == answer.status


@pytest.mark.threat("bring a person who uses the console to a page of one's own")
@pytest.mark.parametrize("token", ["", "0.0", "another form", "another person", "logged out"])
def test_a_form_without_its_own_token_is_refused(token: str) -> None:
    app = with_users()
    cookie = {"cookie": log_in(app).cookie}
    made = {
        "another form": lambda: token_for(app, cookie, "/tx/a/commit"),
        "another person": lambda: token_of(app, log_in(app, "bob").cookie),
        "logged out": lambda: ask(app, "/login").form_token,
    }.get(token, lambda: token)()

    assert 403 == ask(app, "/settle", form={"form_token": made}, headers=cookie).status


def test_without_people_a_form_needs_its_token_as_well() -> None:
    app = console(is_writable=True)

    assert 403 == ask(app, "/settle", form={}).status
    assert 200 == ask(app, "/settle", form={"form_token": token_of(app, "")}).status


@pytest.mark.threat("bring a person who uses the console to a page of one's own")
@pytest.mark.parametrize("mode", ["no-cors", "cors", "websocket"])
def test_a_page_of_another_site_embeds_and_reads_nothing(mode: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode}

    assert 403 == ask(console(), "/", headers=headers).status


@pytest.mark.threat("bring a person who uses the console to a page of one's own")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "a@127.0.0.1",
        "1.2.3.4%evil.example",
        "[fe80::1%evil.example]",
    ],
)
def test_a_name_that_somebody_points_at_the_console_shows_nothing(host: str) -> None:
    assert 421 == ask(console(), "/", host=host).status


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9999", "[::1]:8080", "LOCALHOST:8080", NAME, f"{NAME}:443"])
def test_an_address_and_a_name_that_was_given_are_the_consoles(host: str) -> None:
    assert 200 == ask(console(public_names={NAME}), "/", host=host).status


# --- what every answer says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/", "/login", "/fail", "/nothing", "/static/console.css"])
def test_every_answer_keeps_itself_out_of_frames_caches_and_other_sites(target: str) -> None:
    headers = ask(console(), target).headers
    policy = {part.split()[0]: part.split()[1:] for part in headers["content-security-policy"].split(";")}

    assert ["'none'"] == policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"]
    assert ["'self'"] == policy["script-src"] == policy["style-src"] == policy["form-action"] == policy["connect-src"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "nosniff" == headers["x-content-type-options"]
    assert "no-referrer" == headers["referrer-policy"]
    assert "no-store" == headers["cache-control"]
    assert "DENY" == headers["x-frame-options"]


def test_refusals_carry_the_same_headers() -> None:
    refused = [ask(console(), "/", host="evil.example"), ask(console(), f"/{'x' * 20_000}"), ask(with_users(), "/")]

    assert all("content-security-policy" in answer.headers for answer in refused)


# --- nothing secret ---------------------------------------------------------------------------------------------------


def test_passwords_cookies_and_tokens_are_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = with_users()
    entered = log_in(app)
    token = token_of(app, entered.cookie)
    log_in(app, password="wrong horse battery")
    log_in(app, name="correct-horse-in-the-wrong-field", password="x")
    ask(app, "/settle", form={"form_token": token}, headers={"cookie": entered.cookie})
    logged = " ".join(str(vars(record)) for record in caplog.records)

    assert {"console.login", "console.login_refused"} <= {record.getMessage() for record in caplog.records}
    for secret in (PASSWORD, "wrong horse", "correct-horse", entered.cookie.partition("=")[2], token):
        assert secret not in logged


def test_an_error_of_a_page_says_nothing_and_is_logged_in_lines_that_cannot_be_forged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging(log_format="text", level="INFO")

    page = ask(console(), "/fail")

    said = capsys.readouterr().err
    assert 500 == page.status
    assert "secret-in-an-error" not in page.text
    assert "console.failed" in said
    assert all(line.startswith("  ") or "console.failed" in line for line in said.splitlines())


def test_the_file_of_users_is_shown_nowhere() -> None:
    assert "argon2" not in repr(AccessRules(users=USERS))


def test_lifespan_reaches_the_app() -> None:
    seen = []

    async def app(scope: object, *_: object) -> None:
        seen.append(scope)

    asyncio.run(protected(app, AccessRules())({"type": "lifespan"}, None, None))  # type: ignore[arg-type]  # not used

    assert [{"type": "lifespan"}] == seen
