"""The web application: what its pages share, the live view's thread, and where pages and middleware are put together."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from txlayer import __version__, errors
from txlayer.adapters.connect import Clients, CoordinatorConnections
from txlayer.config import ConsumerConfig, CoordinatorConfig
from txlayer.console import show
from txlayer.console.access import AccessRules, protected
from txlayer.console.acting import Action, Desk, Jobs
from txlayer.console.limits import Connections
from txlayer.console.pages import LOOKS, ROUTES, SECTIONS
from txlayer.console.pages.settle import WORDS
from txlayer.console.people import SecondPerson
from txlayer.operate.live import LiveView
from txlayer.operate.operators import check_operator_rights
from txlayer.operate.overall import Looks, being_read
from txlayer.runtime.environment import REAL, Environment

STATIC = str(files("txlayer.console") / "static")
RIGHTS_S = 15.0
"""Whether changes are still allowed is asked again when the last answer is older, and somebody asks for a page."""
STOP_S = 5.0  # how long the end waits for the view's thread, which may just wait for a broker


@dataclass(slots=True)
class Console:
    """What every page has at hand: `request.app.state.console`."""

    config: CoordinatorConfig
    clients: Clients
    consumers: ConsumerConfig  # the consumers' settings, for the leases
    inspect: Callable[[], Any]  # reads the facts that `doctor` judges
    rules: AccessRules = field(default_factory=AccessRules)  # who may use it, and from where
    environment: Environment = REAL
    trace_address: str = ""  # where a trace is shown; `{trace_id}` stands for its id
    report_address: str = ""  # where the report of `txlayer-spark` is shown
    desk: Desk = field(default_factory=Desk)
    second_person: SecondPerson[Action] = field(default_factory=SecondPerson)
    """The actions that wait for another person; the event loop alone uses it."""
    connections: Connections = field(default_factory=Connections)  # those of the server
    jobs: Jobs = field(init=False)
    looks: Looks = field(init=False)
    view: LiveView = field(init=False)
    templates: Templates = field(init=False)

    def __post_init__(self) -> None:
        self.jobs, self.looks = Jobs(self.now_ms), Looks(self.environment)
        self.view = LiveView(self.connect, environment=self.environment)
        # Undefined names are mistakes of ours; everything that is put into a page is escaped.
        self.templates = Templates(
            loader=PackageLoader("txlayer.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(show.FILTERS)
        self.templates.globals.update(
            version=__version__,
            namespace=self.config.namespace,
            sections=SECTIONS,
            report_address=self.report_address,
            words=WORDS,
            is_writable=self.rules.is_writable,
            has_passwords=self.rules.has_passwords,
            needs_second_person=self.rules.needs_second_person,
        )

    def connect(self) -> CoordinatorConnections:
        return CoordinatorConnections(self.clients, self.config, is_sparing=True)

    def now_ms(self) -> int:
        return int(self.environment.wall_clock() * 1000)

    async def brokers_ms(self) -> int:
        """From which ages count that say what is meant: this machine's clock may be wrong."""
        return (await self.desk.call(self.clients.history().time)).latest_ms

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """An HTML page. Every template knows the time, when reading began, the live state, the person, and how to sign forms."""
        state, now_ms = request.state, self.now_ms()
        text = self.templates.get_template(template).render(
            now_ms=now_ms,
            read_ms=getattr(state, "read_ms", now_ms),
            live=self.view.state,
            being_read=being_read(self.view.state),
            refused=self._refused_writes() if self.rules.is_writable else "",
            proposal_count=len(self.second_person.waiting(now_s=self.environment.clock())),
            path=request.url.path,
            person=getattr(state, "person", None),
            form_token=getattr(state, "form_token", lambda _action: ""),
            **values,
        )
        return HTMLResponse(text, status)

    def _refused_writes(self) -> str:
        """Why the broker would refuse a change now; empty: as far as was seen last, it would not."""

        def read() -> str:
            with closing(self.clients.admin()) as admin:
                try:
                    check_operator_rights(admin.topic_limits, self.config.topics)
                except errors.NotAuthorisedError as exc:
                    return str(exc)
            return ""

        return self.looks.newest("rights", read, age_s=RIGHTS_S).result or ""


def build_app(console: Console, *, is_following: bool = True) -> ASGIApp:
    """The application. While it runs, a thread keeps the view current, unless a test does."""
    stop = threading.Event()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        thread = threading.Thread(
            target=console.view.run, kwargs={"should_stop": stop}, name="txlayer-view", daemon=True
        )
        if is_following:
            thread.start()
        yield
        stop.set()
        for job in console.jobs.named(""):
            console.jobs.stop(job.name)
        console.desk.close()
        if is_following:
            thread.join(STOP_S)

    app = Starlette(
        routes=[*ROUTES, Mount("/static", StaticFiles(directory=STATIC), name="static")],
        lifespan=lifespan,
        exception_handlers={errors.TxLayerError: _refused, 404: _missing, 500: _failed},  # type: ignore[dict-item]  # a handler of its own error alone
    )
    app.state.console = console
    return protected(app, console.rules, looks=LOOKS)


# --- pages that say why there is no page ------------------------------------------------------------------------------


async def _refused(request: Request, error: errors.TxLayerError) -> Response:
    """What a question to the cluster raised; the cluster's state is as it was."""
    console: Console = request.app.state.console
    if isinstance(error, errors.InvariantError):
        return await _failed(request, error)
    status, title = 502, "The cluster did not answer this"
    detail = str(error)
    if isinstance(error, errors.NotAuthorisedError):
        status, title = 403, "The broker refuses these credentials"
        detail += ". `txlayer topics acls check` with the console's roles names each right that is missing."
    elif isinstance(error, errors.UsageError):
        status, title = 400, "This cannot be done" if request.method == "POST" else "This cannot be shown"
    elif isinstance(error, errors.BrokerUnavailableError):
        status, title = 503, "The cluster does not answer now"
    elif isinstance(error, errors.RetriableError):
        status, title = 503, "Not now"
    return console.page(request, "problem.html", status=status, title=title, detail=detail)


async def _missing(request: Request, _error: Exception) -> Response:
    console: Console = request.app.state.console
    return console.page(request, "problem.html", status=404, title="There is no such page", detail="")


async def _failed(request: Request, _error: Exception) -> Response:
    """A defect; the log has its traceback, the page has nothing of it."""
    console: Console = request.app.state.console
    detail = "This is a defect of txlayer; the log of the console has the details."
    return console.page(request, "problem.html", status=500, title="The console failed", detail=detail)
