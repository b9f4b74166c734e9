"""Forms of requests and answers; the page at /docs shows their descriptions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from fieldwise.config.errors import shown

Scalar = str | int | float | bool | None
SCALARS = frozenset((str, int, float, bool, type(None)))


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Refuses a value that no field can have. Checked by hand: a union of types takes four times as long."""
    kinds = set(map(type, row.values()))
    if not kinds <= SCALARS or float in kinds:
        for name, value in row.items():
            members = value if isinstance(value, list) else (value,)
            if not SCALARS.issuperset(map(type, members)):
                raise ValueError(
                    f"a value is a text, a number, true, false, null or a list of them: field '{shown(name)}'"
                )
            if not all(math.isfinite(member) for member in members if isinstance(member, float)):
                raise ValueError(f"a number is finite; leave out what is missing: field '{shown(name)}'")
    return row


_SCALAR_SCHEMA = {"type": ["string", "number", "boolean", "null"]}
VALUE_SCHEMA = {"anyOf": [_SCALAR_SCHEMA, {"type": "array", "items": _SCALAR_SCHEMA}]}
Fields = Annotated[
    dict[str, Any],
    AfterValidator(plain),
    WithJsonSchema(
        {
            "type": "object",
            "description": "A value for each field. An absent field or null is missing, a value never seen is `other`; "
            "a set is a list, or a text with its separator.",
            "additionalProperties": VALUE_SCHEMA,
        }
    ),
]
ArmName = Annotated[str, Field(description="Use this arm instead of the split field's; reports leave the request out.")]
Logged = Annotated[bool, Field(description="false: this is not an impression; do not log it.")]


class Request(BaseModel):
    """A request; unknown names are refused."""

    model_config = ConfigDict(extra="forbid")


def schema_of(form: type[BaseModel], columns: Iterable[str]) -> dict[str, Any]:
    """The JSON schema of a request whose rows have these columns and no others."""
    known = dict.fromkeys(sorted(columns), VALUE_SCHEMA)

    def named(node: Any) -> Any:
        if isinstance(node, list):
            return [named(part) for part in node]
        if not isinstance(node, dict):
            return node
        if node.get("additionalProperties") == VALUE_SCHEMA:
            node = node | {"properties": known, "additionalProperties": False}
        return {key: part if key == "properties" and part is known else named(part) for key, part in node.items()}

    found: dict[str, Any] = named(form.model_json_schema())
    return found


class PredictRequest(Request):
    rows: list[Fields]
    arm: ArmName = ""
    log: Logged = True


class PredictAnswer(BaseModel):
    request_id: str
    arms: list[str]
    probabilities: list[float]


class RankRequest(Request):
    context: Fields = Field(default_factory=dict)
    candidates: list[Fields] = Field(description="The fields of each candidate; they overwrite those of the context.")
    top: Annotated[int, Field(ge=1, le=2**31)] | None = Field(None, description="How many to return; without it, all.")
    arm: ArmName = ""
    log: Logged = True


class RankedCandidate(BaseModel):
    index: int = Field(description="The candidate's place in the request, from 0.")
    probability: float


class RankAnswer(BaseModel):
    request_id: str
    arm: str
    candidates: list[RankedCandidate] = Field(description="The most probable first.")


class ExplainRequest(Request):
    row: Fields
    arm: ArmName = ""


class ContributionAnswer(BaseModel):
    fields: list[str]
    logit: float


class ExplainAnswer(BaseModel):
    arm: str
    probability: float
    logit: float
    bias: float
    values: dict[str, str]
    fields: list[ContributionAnswer]
    pairs: list[ContributionAnswer]
    exact: bool = Field(description="Whether bias and contributions add up to the logit.")
    method: str


class EventRequest(Request):
    request_id: str = Field(pattern="^[0-9a-f]{32}$", description="As /predict or /rank gave it.")
    candidate: int = Field(0, ge=0, lt=2**31, description="The candidate's index, or the row's, from 0.")
    label: int = Field(1, ge=0, le=1, description="1: a click, a purchase ...; 0: certainly none.")
    event_id: str = Field(
        "",
        pattern="^[!-~]{0,200}$",
        description="Events with the same id count once. Without an id, a row has one event of each label.",
    )
    more: dict[str, Scalar] = Field(default_factory=dict, description="Anything else to keep in the log.")


class EventAnswer(BaseModel):
    new: bool = Field(description="false: the event was already in the log and counts once.")


class ReloadAnswer(BaseModel):
    changed: dict[str, bool]
    models: dict[str, str]
    workers: int = Field(description="How many workers serve these models now.")


class Refusal(BaseModel):
    detail: str


_REASONS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "Sent by a page of another site or, without a token, from another machine.",
    404: "The event names an unknown request.",
    408: "The headers or the body came too slowly.",
    409: "A bundle is broken, or the server has no event log.",
    413: "The body, or the number of rows, is too large.",
    415: "The Content-Type is not JSON.",
    422: "A field is unknown, or a value is invalid.",
    429: "Too many requests are waiting; see Retry-After.",
    431: "The headers are too large.",
    503: "No answer in time, too many connections, or the log cannot be written; see Retry-After.",
    504: "Scoring took too long.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": reason} for status, reason in _REASONS.items()
}
