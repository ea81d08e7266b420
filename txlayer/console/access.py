"""Who gets in: where the console may listen, whose requests it answers, and the headers that protect its pages.

`protected` puts an app behind all of it. Of a request that gets through, the app finds in `request.state`: `person`, `form`
(the fields of a POST) and `form_token`, which makes the hidden field of a form from the form's `action`.
"""

import asyncio
import html
import ipaddress
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import ImmutableMultiDict, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txlayer.console.limits import Limits, RefusedError, TokenBuckets
from txlayer.console.people import NAME, FormTokens, Passwords, Person, Role, Sessions, User
from txlayer.errors import ConfigError

logger = logging.getLogger("txlayer.console")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HIDDEN_FIELD = "form_token"  # the name of the hidden field
LOGIN, LOGOUT, STATIC = "/login", "/logout", "/static/"
LOGIN_BYTES_MAX = 8 * 1024
FORM_FIELD_COUNT_MAX = 1_000
FORM_COUNT_MAX = 8  # forms that are read at a time; each takes up to `BODY_BYTES_MAX`
LOGIN_RATE, LOGIN_BURST = 1 / 3, 20.0
"""Attempts of one client: per second, and at once. No name is ever locked: that would lock out its owner."""
LOGIN_WAITING_MAX = 16  # attempts of all clients that wait for the one thread that compares passwords, some 30 ms each
REFERENCE_LENGTH_MAX = 2_000  # of the address to which a login leads back


# --- where the console may listen -------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the address."""
    address = _address(host.strip("[]"))
    return host == "localhost" or (address is not None and address.is_loopback)


def parse_proxy(text: str) -> Network:
    """An address, or a network of addresses, as `10.0.0.5` or `10.0.0.0/28`."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        network = None
    if network is None or network.prefixlen == 0:
        raise ConfigError("not the address of a proxy", name="--proxy", value=text, expected="10.0.0.5 or 10.0.0.0/28")
    return network


_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
_HOST_NAME = re.compile(r"(?!.{254})[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_HEADERS_OF_BROWSERS = frozenset({"host", "origin", "cookie", "referer", "user-agent", "accept", "x-forwarded-for"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Where the console listens, and how it learns who asks; ConfigError: others could reach it without TLS, or without saying who asks."""

    host: str = "127.0.0.1"
    public_names: frozenset[str] = frozenset()
    """Host names under which browsers reach it, beside `localhost` and addresses."""
    is_tls: bool = False
    proxies: tuple[Network, ...] = ()
    identity_header: str | None = None  # the header in which a proxy says the name of a person
    users: Mapping[str, User] = field(default_factory=dict)
    local_name: str = "local"
    """The name of every person of a console that only this machine can reach, and that knows no people."""
    is_writable: bool = False
    needs_second_person: bool = False

    def __post_init__(self) -> None:
        header = self.identity_header
        if header is not None and (not _HEADER.fullmatch(header) or header.lower() in _HEADERS_OF_BROWSERS):
            why = "not a header of a proxy"
            raise ConfigError(why, name="--identity-header", value=header, expected="X-Remote-User")
        if header is not None and not self.proxies:
            why = "every client could send it"
            raise ConfigError(why, name="--identity-header", expected="--proxy ADDRESS with it")
        if wrong := sorted(name for name in self.public_names if not _HOST_NAME.fullmatch(name)):
            why = "no browser says this name as a host"
            raise ConfigError(why, name="--public-name", value=wrong[0], expected="console.example.org")
        is_local = is_loopback(self.host)
        if not is_local and not self.is_tls and not self.proxies:
            why = "other machines could read and change what browsers send"
            expected = "a loopback address, --tls-cert and --tls-key, or --proxy"
            raise ConfigError(why, name="--host", value=self.host, expected=expected)
        if (not is_local or self.proxies) and not self.knows_people:
            why = "every client of the network could use the console"
            expected = "--users FILE, or --proxy with --identity-header"
            raise ConfigError(why, name="--host" if not is_local else "--proxy", expected=expected)
        if header is None and any(user.password_hash is None for user in self.users.values()):
            raise ConfigError("a user has no password", name="--users", expected="a hash, or --identity-header")
        settlers = sum(user.person.may_settle for user in self.users.values())
        if self.is_writable and self.knows_people and not settlers:
            raise ConfigError("nobody may settle", name="--allow-writes", expected="a line with settle in --users FILE")
        if self.needs_second_person and (not self.is_writable or settlers < 2):
            why = "no second person"
            expected = "--allow-writes, and two with settle in --users FILE"
            raise ConfigError(why, name="--second-person", expected=expected)

    @property
    def knows_people(self) -> bool:
        """True if a request must say whose it is."""
        return bool(self.users) or self.identity_header is not None

    @property
    def has_passwords(self) -> bool:
        return any(user.password_hash is not None for user in self.users.values())

    def is_proxy(self, address: str) -> bool:
        """True if requests of this address come through a proxy that was named."""
        found = _address(address)
        return found is not None and any(found in network for network in self.proxies)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


# --- headers of every answer ------------------------------------------------------------------------------------------

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class SafeHeaders:
    """Sets the headers that keep a page to itself, whatever the app set."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, sending)


# --- one request ------------------------------------------------------------------------------------------------------


class _Asker(NamedTuple):
    person: Person
    session: str  # what the tokens of forms are bound to; it opens nothing


class Access:
    """Lets requests through that come from a person, from a page of this console, and with the right they need.

    `looks` are patterns of the whole paths to which also a person who may only look can post.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        *,
        looks: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._rules = rules
        self._looks = [re.compile(pattern) for pattern in (*looks, re.escape(LOGOUT))]
        self._clock = clock
        self._sessions = Sessions()
        self._tokens = FormTokens()
        self._logins = TokenBuckets(rate=LOGIN_RATE, burst=LOGIN_BURST)
        self._login_count = 0
        self._form_count = 0
        self._passwords = Passwords(rules.users) if rules.has_passwords else None
        # One thread: attempts of all clients together take one processor and 19 MiB at most.
        self._comparing = ThreadPoolExecutor(1, thread_name_prefix="txlayer-login")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            app = await self._admitted(Request(scope, receive))
            await app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)

    def client_of(self, scope: Scope) -> str:
        """Whose requests are counted together: an address, or what a named proxy says of its client."""
        request = Request(scope)
        client, headers = _peer(request), request.headers
        if self._rules.is_proxy(client):
            if self._rules.identity_header is not None and self._rules.identity_header in headers:
                return f"person {headers[self._rules.identity_header][:100]}"
            # Its last entry is the proxy's own; those before it are the client's word.
            forwarded = headers.getlist("x-forwarded-for") or [client]
            client = forwarded[-1].rpartition(",")[2].strip()[:100]
        address = _address(client)
        if isinstance(address, ipaddress.IPv6Address):  # a client has a network of 64 bits to itself
            return str(ipaddress.ip_network((address, 64), strict=False))
        return client

    async def _admitted(self, request: Request) -> ASGIApp:
        """What answers this request; RefusedError: it is not let through."""
        path, is_post = request.scope["path"], request.method == "POST"
        if request.method not in ("GET", "HEAD", "POST"):
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "there are GET, HEAD and POST")
        self._check_host(request)
        self._check_peer(request)
        _check_site(request)
        if path.startswith(STATIC) and not is_post:
            return self._app
        asker = self._asker(request)
        if path == LOGIN and self._passwords is not None:
            return await self._login(request, self._passwords) if is_post else self._login_page(request)
        if asker is None:
            return self._unknown(request)
        state = request.scope.setdefault("state", {})
        state["person"] = asker.person
        state["form_token"] = lambda action: self._tokens.make(
            session=asker.session, action=action, now_s=self._clock()
        )
        if not is_post:
            return self._app
        if not asker.person.may_settle and not any(pattern.fullmatch(path) for pattern in self._looks):
            logger.warning("console.refused", extra={"person": asker.person.name, "why": "may only look"})
            why = "you may look, and not act: this needs the role settle, and --allow-writes"
            raise RefusedError(HTTPStatus.FORBIDDEN, why)
        form = await self._form_of(request)
        self._check_token(form, session=asker.session, path=path)
        if path == LOGOUT:
            return self._logout(request, asker.person)
        state["form"] = form
        return self._app

    # --- where it comes from ------------------------------------------------------------------------------------------

    def _check_host(self, request: Request) -> None:
        """Refuse a name that is not ours: its owner could point it here, and read our pages with scripts of its own."""
        name = _host_name(request)
        is_address = _address(name.strip("[]")) is not None and "%" not in name  # browsers send no zone
        is_known = name == "localhost" or is_address or name in self._rules.public_names
        if not is_known or len(request.headers.getlist("host")) != 1:
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, "not a name of this console; name it with --public-name")

    def _check_peer(self, request: Request) -> None:
        rules = self._rules
        if rules.is_proxy(_peer(request)):
            return
        if rules.identity_header is not None and rules.identity_header in request.headers:
            logger.warning("console.header_refused", extra={"address": _peer(request)})
            raise RefusedError(HTTPStatus.FORBIDDEN, "this header counts from the proxies of this console only")
        if rules.proxies and not rules.is_tls:
            raise RefusedError(HTTPStatus.FORBIDDEN, "this console answers its proxies only")

    # --- whose it is --------------------------------------------------------------------------------------------------

    def _asker(self, request: Request) -> _Asker | None:
        rules = self._rules
        if not rules.knows_people:
            return _Asker(self._with_rights(Person(rules.local_name, Role.SETTLE)), "local")
        if rules.identity_header is not None and rules.identity_header in request.headers:
            # It comes from a proxy: `_check_peer` has refused all others.
            name, *more = request.headers.getlist(rules.identity_header)
            if more or NAME.fullmatch(name) is None:
                raise RefusedError(HTTPStatus.FORBIDDEN, "the proxy names no person, or more than one")
            person = rules.users[name].person if name in rules.users else Person(name, Role.LOOK)
            return _Asker(self._with_rights(person), f"proxy {name}")
        cookie = _cookie(request)
        known = self._sessions.person(cookie, now_s=self._clock()) if cookie else None
        return None if known is None else _Asker(self._with_rights(known), Sessions.key_of(cookie))

    def _with_rights(self, person: Person) -> Person:
        return person if self._rules.is_writable else Person(person.name, Role.LOOK)

    def _unknown(self, request: Request) -> Response:
        is_page = request.method != "POST" and request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        if self._passwords is None or not is_page:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "log in first")
        query = request.scope["query_string"].decode("latin-1")
        here = _own_address(quote(request.scope["path"]) + (f"?{query}" if query else ""))
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # The browser keeps the cookie back from a link of another site, and sends it when this page asks again.
            return _page("One moment", f'<p><a href="{html.escape(here)}">Go on</a></p>', refresh=here)
        return RedirectResponse(f"{LOGIN}?next={quote(here, safe='')}", HTTPStatus.SEE_OTHER)

    # --- logging in and out -------------------------------------------------------------------------------------------

    def _login_page(self, request: Request) -> Response:
        given = request.scope["query_string"].decode("latin-1")[: 3 * REFERENCE_LENGTH_MAX]
        query = dict(parse_qsl(given))
        return self._login_form(_own_address(query.get("next", "")))

    def _login_form(self, leads_to: str, *, error: str = "", status: HTTPStatus = HTTPStatus.OK) -> Response:
        token = self._tokens.make(session="", action=LOGIN, now_s=self._clock())
        body = (
            (f'<p role="alert">{html.escape(error)}</p>' if error else "")
            + f'<form method="post" action="{LOGIN}"><input type="hidden" name="{HIDDEN_FIELD}" value="{token}">'
            f'<input type="hidden" name="next" value="{html.escape(leads_to)}">'
            '<p><label>Name <input name="name" autocomplete="username" required autofocus></label></p>'
            '<p><label>Password <input name="password" type="password" autocomplete="current-password" required></label></p>'
            "<p><button>Log in</button></p></form>"
        )
        return _page("Log in", body, status=status)

    async def _login(self, request: Request, passwords: Passwords) -> Response:
        client = self.client_of(request.scope)
        wait_s = self._logins.wait_s(client, now_s=self._clock())
        if wait_s:
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "too many attempts; wait a moment", retry_s=wait_s)
        form = await _read_form(request, size_max=LOGIN_BYTES_MAX)
        self._check_token(form, session="", path=LOGIN)
        if self._login_count >= LOGIN_WAITING_MAX:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "many people log in; try again", retry_s=1)
        name, password = form.get("name", ""), form.get("password", "")
        self._login_count += 1
        try:
            compare = partial(passwords.person, name, password)
            person = await asyncio.get_running_loop().run_in_executor(self._comparing, compare)
        finally:
            self._login_count -= 1
        leads_to = _own_address(form.get("next", ""))
        if person is None:
            # An unknown name may be a password in the wrong field.
            known = name if name in self._rules.users else "unknown"
            logger.warning("console.login_refused", extra={"person": known, "client": client})
            error = "Name or password is wrong."
            return self._login_form(leads_to, error=error, status=HTTPStatus.FORBIDDEN)
        if before := _cookie(request):
            self._sessions.close(before)
        logger.info("console.login", extra={"person": person.name, "client": client})
        response = RedirectResponse(leads_to, HTTPStatus.SEE_OTHER)
        _set_cookie(response, request, self._sessions.open(person, now_s=self._clock()))
        return response

    def _logout(self, request: Request, person: Person) -> Response:
        self._sessions.close(_cookie(request))
        logger.info("console.logout", extra={"person": person.name})
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        _set_cookie(response, request, "")
        return response

    # --- forms --------------------------------------------------------------------------------------------------------

    async def _form_of(self, request: Request) -> ImmutableMultiDict[str, str]:
        if self._form_count >= FORM_COUNT_MAX:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "many forms arrive; try again", retry_s=1)
        self._form_count += 1
        try:
            return await _read_form(request)
        finally:
            self._form_count -= 1

    def _check_token(self, form: ImmutableMultiDict[str, str], *, session: str, path: str) -> None:
        token = form.get(HIDDEN_FIELD, "")
        if not self._tokens.is_good(token, session=session, path=path, now_s=self._clock()):
            why = "this form is too old, or not of this console; load its page again"
            raise RefusedError(HTTPStatus.FORBIDDEN, why)


def protected(
    app: ASGIApp, rules: AccessRules, *, looks: Collection[str] = (), clock: Callable[[], float] = time.monotonic
) -> ASGIApp:
    access = Access(app, rules, looks=looks, clock=clock)
    return SafeHeaders(Limits(access, client_of=access.client_of, clock=clock))


def _peer(request: Request) -> str:
    return "" if request.client is None else str(request.client.host)


def _host_name(request: Request) -> str:
    return re.sub(r":[0-9]*$", "", request.headers.get("host", "")).lower()


def _is_secure(request: Request) -> bool:
    """True unless the browser is on this machine and uses plain HTTP."""
    return request.scope["scheme"] == "https" or not is_loopback(_host_name(request))


def _cookie(request: Request) -> str:
    return request.cookies.get(_cookie_name(request), "")


def _cookie_name(request: Request) -> str:
    # `__Host-` keeps other hosts of the domain from setting it. Programs on other ports of this machine share its cookies.
    if _is_secure(request):
        return "__Host-txlayer-console"
    return f"txlayer-console-{(request.scope.get('server') or ('', 0))[1]}"


def _set_cookie(response: Response, request: Request, value: str) -> None:
    response.set_cookie(
        _cookie_name(request),
        value,
        max_age=None if value else 0,
        secure=_is_secure(request),
        httponly=True,
        samesite="strict",
    )


def _check_site(request: Request) -> None:
    """Refuse what a page of another site sends, apart from a link to a page of ours. With `no-referrer`, browsers send `Origin: null` with our
    own forms, too; then `Sec-Fetch-Site` decides, which no page can set.
    """
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if request.method != "POST":
        is_ours = site in (None, "same-origin", "none") or headers.get("sec-fetch-mode") == "navigate"
    elif site is not None:
        is_ours = site == "same-origin" and (origin in (None, "null") or _is_own(origin, request))
    else:
        is_ours = origin is not None and _is_own(origin, request)
    if not is_ours:
        raise RefusedError(HTTPStatus.FORBIDDEN, "this request came from a page of another site")


def _is_own(origin: str, request: Request) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    is_host = parts.netloc.lower() == request.headers.get("host", "").lower()
    return is_host and (parts.scheme == "https" or not _is_secure(request))


async def _read_form(request: Request, *, size_max: int | None = None) -> ImmutableMultiDict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not a form of this console")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if size_max is not None and len(body) > size_max:
                raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the form is too large")
    except ClientDisconnect:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "the form did not arrive") from None
    try:
        pairs = parse_qsl(bytes(body).decode("latin-1"), keep_blank_values=True, max_num_fields=FORM_FIELD_COUNT_MAX)
    except ValueError:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "the form has too many fields") from None
    return ImmutableMultiDict(pairs)


def _own_address(text: str) -> str:
    """An address of this console to go back to; its first page for everything else."""
    is_own = re.fullmatch(r"/(?![/\\])[\x21-\x7e]*", text) is not None and "\\" not in text
    return text if is_own and len(text) <= REFERENCE_LENGTH_MAX else "/"


def _page(title: str, body: str, *, status: HTTPStatus = HTTPStatus.OK, refresh: str | None = None) -> HTMLResponse:
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="0; url={html.escape(refresh)}">'
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}<title>{title} - txlayer</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/console.css"></head>'
        f"<body><main><h1>{title}</h1>{body}</main></body></html>",
        status,
    )
