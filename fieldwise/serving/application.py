"""The service over HTTP: parses, calls, answers."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException

import fieldwise
from fieldwise.abtest.analysis import report
from fieldwise.abtest.event_log import BusyError, Event
from fieldwise.config.errors import DataError, FieldwiseError, shown
from fieldwise.serving import messages, page
from fieldwise.serving.gate import Gate
from fieldwise.serving.guard import Guard, Posted
from fieldwise.serving.meters import Meters
from fieldwise.serving.refusals import KINDS, refuse
from fieldwise.serving.service import Service

JSON = "application/json"
# How old the report of an A/B test may be: many viewers then cost no more than one.
REPORT_SECONDS = 3.0


@dataclass(frozen=True)
class Limits:
    """Limits of each worker: the size of a request, how many may wait, how many connections may be open."""

    max_body: int = 4_000_000
    max_rows: int = 2000
    timeout: float = 5.0
    queue: int = 64
    max_headers: int = 32_000
    header_timeout: float = 10.0
    connections: int = 512


@dataclass(frozen=True)
class Hooks:
    """Calls into the process around the application: reload the other workers, and return how many reloaded."""

    reload_others: Callable[[Mapping[str, str]], int] = lambda _models: 1


class Application:
    """The routes over one service."""

    def __init__(self, service: Service, token: str, limits: Limits, hooks: Hooks, poll: float = 0.1) -> None:
        self.service, self.limits, self.hooks, self.poll = service, limits, hooks, poll
        self.meters = Meters()
        self.gate = Gate(limits.queue, limits.timeout, self.meters.waiting)
        self.api = FastAPI(
            title="fieldwise",
            description="Probabilities, rankings, explanations and an A/B test over one or more bundles.",
            version=fieldwise.__version__,
            docs_url=None,
            redoc_url=None,
            lifespan=self._life,
            responses=messages.REFUSALS,
        )
        self._report: tuple[float, dict[str, Any]] = (0.0, {})
        self._reporting = asyncio.Lock()
        self._bodies: list[tuple[type[BaseModel], dict[str, Any]]] = []
        self._posted: dict[str, Posted] = {}
        self._routes()
        self._describe()
        for kind in KINDS:
            self.api.add_exception_handler(kind, lambda _request, error: refuse(error))
        self._files()
        self.api.add_middleware(
            Guard,
            token=token,
            max_body=limits.max_body,
            timeout=limits.timeout,
            meters=self.meters,
            posted=self._posted,
        )

    @asynccontextmanager
    async def _life(self, _api: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(self._follow()) if self.service.log else None
        yield
        if following:
            following.cancel()
        self.gate.close()
        self.service.close()

    async def _follow(self) -> None:
        """Counts in the histories the responses that other workers have logged."""
        while True:
            await asyncio.sleep(self.poll)
            if self.service.has_history:
                await asyncio.to_thread(self.service.catch_up)

    def _routes(self) -> None:
        posts: tuple[tuple[Any, type[BaseModel], type[BaseModel]], ...] = (
            (self.predict, messages.PredictRequest, messages.PredictAnswer),
            (self.rank, messages.RankRequest, messages.RankAnswer),
            (self.explain, messages.ExplainRequest, messages.ExplainAnswer),
            (self.event, messages.EventRequest, messages.EventAnswer),
        )
        for handler, form, model in posts:
            path, body = f"/{handler.__name__}", dict[str, Any]()
            self._bodies.append((form, body))
            self._posted[path] = posted = _parsing(form, handler)
            self.api.add_api_route(
                path,
                _routed(posted, handler.__name__),
                methods=["POST"],
                response_model=model,
                description=handler.__doc__,
                openapi_extra={"requestBody": {"required": True, "content": {JSON: body}}},
            )
        self.api.add_api_route("/reload", self.reload, methods=["POST"], response_model=messages.ReloadAnswer)
        for asked in (self.model, self.values, self.abtest, self.health, self.ready, self.metrics):
            self.api.add_api_route(f"/{asked.__name__}", asked, methods=["GET"], response_model=None)

    def _describe(self) -> None:
        """Puts the columns of the models in service into the OpenAPI description."""
        for form, body in self._bodies:
            body["schema"] = messages.schema_of(form, self.service.columns)
        self.api.openapi_schema = None

    async def predict(self, asked: messages.PredictRequest) -> Response:
        """The probability of a response for each row."""
        self._check_rows(len(asked.rows))
        found = await self.gate.score(len(asked.rows), self.service.predict, asked.rows, asked.arm, asked.log)
        self.meters.scored("/predict", Counter(found.arms))
        return answer(found)

    async def rank(self, asked: messages.RankRequest) -> Response:
        """The candidates with the highest probabilities; the context is encoded once."""
        self._check_rows(len(asked.candidates))
        count = len(asked.candidates)
        given = asked.context, asked.candidates, asked.top, asked.arm, asked.log
        found = await self.gate.score(count, self.service.rank, *given)
        self.meters.scored("/rank", {found.arm: count})
        pairs = zip(found.order, found.probabilities, strict=True)
        candidates = [{"index": index, "probability": probability} for index, probability in pairs]
        return answer({"request_id": found.request_id, "arm": found.arm, "candidates": candidates})

    async def explain(self, asked: messages.ExplainRequest) -> Response:
        """The contribution of each field and each pair of fields to the logit of a row."""
        arm, found = await self.gate.run(self.service.explain, asked.row, asked.arm)
        return answer({"arm": arm} | asdict(found))

    async def event(self, asked: messages.EventRequest) -> Response:
        """A response to a row that was shown. Once this answers, the event is on the disk."""
        event = Event(asked.request_id, asked.candidate, asked.label, asked.event_id, asked.more)
        try:
            async with asyncio.timeout(self.limits.timeout):
                # Shielded: a timeout must not cancel the write.
                new = await asyncio.shield(asyncio.wrap_future(self.service.respond(event)))
        except TimeoutError:
            raise BusyError(f"not on the disk within {self.limits.timeout:g} seconds; send it again") from None
        if self.service.has_history:
            await asyncio.to_thread(self.service.catch_up)
        self.meters.events.labels(str(asked.label), str(new).lower()).inc()
        return answer({"new": new})

    async def reload(self) -> Response:
        """Loads the bundles again from the paths given at the start; a broken bundle is refused."""
        before = {arm.name: arm.model for arm in self.service.arms}
        await asyncio.to_thread(self.reload_here)
        models = {arm.name: arm.model for arm in self.service.arms}
        # Compared with the models before this request: a signal may have reloaded them meanwhile.
        changed = {name: model != before[name] for name, model in models.items()}
        workers = await asyncio.to_thread(self.hooks.reload_others, models)
        return answer({"changed": changed, "models": models, "workers": workers})

    def reload_here(self) -> None:
        """Reloads the bundles in this process."""
        try:
            changed = self.service.reload()
        except Exception:
            self.meters.reloads.labels("refused").inc()
            raise
        self._describe()
        if gc.get_freeze_count():
            # The worker froze its objects at the start; some of them are garbage now.
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        self.meters.reloads.labels("swapped" if any(changed.values()) else "unchanged").inc()

    async def model(self) -> Response:
        """The arms: models, fields, metrics, shares."""
        shares = self.service.router.expected
        arms = [
            {
                "name": arm.name,
                "share": shares[arm.name],
                "id": arm.model,
                "history": arm.engine.has_history,
                "fields": [asdict(field) for field in arm.engine.fields],
                **{name: value for name, value in arm.engine.model.items() if name != "path"},
            }
            for arm in self.service.arms
        ]
        router = {"field": self.service.router.field, "log": self.service.log is not None}
        return answer({"arms": arms, "split": router, "limits": asdict(self.limits)})

    async def values(self, field: str, prefix: str = "", limit: int = 20, arm: str = "") -> Response:
        """Known values of a field that start with a prefix, the most frequent first."""
        number = self.service.router.named(arm) if arm else 0
        engine = self.service.arms[number].engine
        found = await self.gate.run(engine.search, field, prefix, max(1, min(limit, 100)))
        return answer({"values": found})

    async def abtest(self) -> Response:
        """The current report of the A/B test, at most a few seconds old."""
        async with self._reporting:
            if time.monotonic() > self._report[0]:
                found = await asyncio.to_thread(self._fresh_report)
                self._report = (time.monotonic() + REPORT_SECONDS, found)
        return answer(self._report[1])

    def _fresh_report(self) -> dict[str, Any]:
        if self.service.log is None:
            raise FieldwiseError("this server keeps no event log; start it without --log none")
        try:
            return report(self.service.log.address)
        except DataError as error:
            return {"arms": [], "days": [], "comparisons": [], "sample_ratio": None, "warnings": [str(error)]}

    async def health(self) -> Response:
        """The process is alive."""
        return answer({"status": "ok"})

    async def ready(self) -> Response:
        """Whether the server can answer and write its log."""
        if self.service.log and not self.service.log.healthy:
            return answer({"detail": "the event log cannot be written"}, 503)
        return answer({"status": "ready"})

    async def metrics(self) -> Response:
        """Meters for Prometheus."""
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _check_rows(self, found: int) -> None:
        if found > self.limits.max_rows:
            raise HTTPException(413, f"a request has at most {self.limits.max_rows} rows, found {found}")

    def _files(self) -> None:
        """The page and the description of the interface; all files come from this machine."""
        page.mount(self.api)
        swagger = _swagger_folder()
        self.api.mount("/static-offline-docs", StaticFiles(directory=swagger), "docs files")
        self.api.add_api_route("/docs", _docs, include_in_schema=False)


def _parsing(form: type[BaseModel], handler: Callable[[Any], Awaitable[Response]]) -> Posted:
    """Parses a body into its form and calls the handler. Parsing the bytes refuses texts that are not Unicode."""

    async def read(content_type: str, body: bytes) -> Response:
        content_type = content_type.partition(";")[0].strip().lower()
        if content_type != JSON:
            raise HTTPException(415, f"expected a body of {JSON}, found {shown(content_type) or 'no Content-Type'}")
        return await handler(form.model_validate_json(body))

    return read


def _routed(posted: Posted, name: str) -> Any:
    """The handler as a route, for the OpenAPI description and for requests that bypass the guard."""

    async def route(request: Request) -> Response:
        return await posted(request.headers.get("content-type", ""), await request.body())

    route.__name__ = name
    return route


def answer(values: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(values), status, media_type=JSON)


def _swagger_folder() -> Path:
    import fastapi_offline

    return Path(fastapi_offline.__file__).parent / "static"


async def _docs() -> HTMLResponse:
    files = "/static-offline-docs"
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="fieldwise",
        swagger_js_url=f"{files}/swagger-ui-bundle.js",
        swagger_css_url=f"{files}/swagger-ui.css",
        swagger_favicon_url=f"{files}/favicon.png",
    )
