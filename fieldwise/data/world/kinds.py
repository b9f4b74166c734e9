"""What the kinds of worlds look like: their columns, base rates and strengths."""

from __future__ import annotations

from dataclasses import dataclass

CATEGORICAL, NUMERIC = ("word", "hex", "number"), ("integer", "float")


@dataclass(frozen=True)
class Column:
    """What a column looks like; `of` names the column that owns it, as an item owns its category."""

    name: str
    size: int
    style: str = "word"  # CATEGORICAL, NUMERIC, "set", or from the clock: "day", "weekday", "hour", "stamp"
    of: str = ""
    skew: float = 1.1  # the exponent of Zipf's law
    item: bool = False  # differs between the candidates of a request; owned columns follow their owner
    missing: float = 0.0
    words: str = ""  # the values, or the members of a set
    first: int = 0  # where a "number" starts


def _columns(text: str, style: str = "word", first: int = 0, item: bool = False) -> list[Column]:
    """Columns from words like `site_domain:3487:site_id`: the name, the size and the owner."""
    parts = [f"{word}:".split(":") for word in text.split()]
    return [Column(name, int(size), style, of[0], item=item, first=first) for name, size, *of in parts]


DEVICES = "phone tablet laptop desktop tv watch car console speaker reader"
SHOPS = "art baby bikes books cars coffee film food games garden music news pets shoes sport tea tools toys travel wine"
GENRES = "action comedy crime drama family horror mystery romance science war western"
DEMO = (
    Column("day", 0, "day"),
    Column("hour", 24, "hour"),
    Column("weekday", 7, "weekday", words="mon tue wed thu fri sat sun"),
    Column("user", 2000, skew=0.9),
    Column("city", 60, of="user"),
    Column("device", 10, words=DEVICES),
    Column("item", 1000, skew=1.05, item=True),
    Column("category", 20, of="item", words=SHOPS),
    Column("advertiser", 60, of="item"),
    Column("price", 500, "float", of="item", missing=0.03),
    Column("genres", 150, "set", of="item", words=GENRES),
)
# The sizes of the paper's data sets, the largest cut; what they count for unknown values is left out.
INTEGERS = (4389, 5000, 329, 5000, 2646, 428, 233, 5000, 295, 11, 173, 5000, 585)
CATEGORIES = (147117, 19845, 14830, 6916, 18687, 4, 6646, 1272, 46, 141085, 64381, 63692, 11)
AD_CATEGORIES = (2156, 7806, 61, 5, 928, 15, 147387, 116331, 145634, 57186, 9307, 63, 34)
OWNERS = {"C9": "C8", "C13": "C8", "C16": "C14", "C17": "C14", "C19": "C14", "C25": "C15"}
CRITEO = (
    *(Column(f"I{i}", size, "integer", missing=0.08 * (i % 5)) for i, size in enumerate(INTEGERS, 1)),
    *(
        Column(f"C{i}", size, "hex", OWNERS.get(f"C{i}", ""), item=i > 13, missing=0.1 * (i % 4 == 3))
        for i, size in enumerate(CATEGORIES + AD_CATEGORIES, 1)
    ),
)
AVAZU = (
    Column("hour", 24, "stamp"),
    *_columns("C1:7", "number", first=1001),
    *_columns("banner_pos:7", "number"),
    *_columns("site_id:3135 site_domain:3487:site_id site_category:24:site_id", "hex"),
    *_columns("app_id:4002 app_domain:252:app_id app_category:28:app_id", "hex"),
    *_columns("device_id:101449 device_ip:200000 device_model:5925", "hex"),
    *_columns("device_type:5:device_model device_conn_type:4", "number"),
    *_columns("C14:2417 C15:8:C14 C16:9:C14 C17:426:C14 C18:4:C14 C19:67:C14", "number", first=50, item=True),
    *_columns("C20:166", "number", first=100_000),
    *_columns("C21:60:C14", "number", first=10),
)
IPINYOU = (
    Column("weekday", 7, "weekday"),
    Column("hour", 24, "hour"),
    *_columns("IP:200000", "hex"),
    *_columns("region:35:city city:370:IP adexchange:5", "number", first=1),
    *_columns("domain:51321:slotid slotid:180695", "hex"),
    *_columns("slotwidth:21:slotid slotheight:14:slotid", "number", first=60),
    *_columns("slotvisibility:11:slotid slotformat:4:slotid", "number"),
    *_columns("creative:131", "hex", item=True),
    *_columns("advertiser:9:creative", "number", first=1458),
    *_columns("useragent:40"),
    *_columns("slotprice:5", "number"),
)
APPSTORE = (
    Column("user", 60_000, skew=0.8),
    *_columns("app:5000", item=True),
    *_columns("category:30:app"),
    *_columns("position:20", "number", first=1),
    Column("hour", 24, "hour"),
    *_columns("device:200 city:300:user last_category:30"),
    Column("tags", 400, "set", of="app", words=" ".join(f"tag_{i}" for i in range(40))),
)


@dataclass(frozen=True)
class Repeats:
    """Who returns to what: each user has `favourites` items, and `share` of the user's rows show one of them.

    Each pair of the two columns has a separate taste, drawn for the pair alone with this deviation in the logit,
    so that no vector of either side predicts it, only what this pair did before. Favourites that please are shown more
    often.
    """

    user: str
    item: str
    share: float
    favourites: int
    deviation: float


@dataclass(frozen=True)
class Kind:
    """A kind of world: its columns, the usual base rate, the strength of PARTS, and repeats where it has them."""

    columns: tuple[Column, ...]
    rate: float
    strength: float
    repeats: Repeats | None = None


KINDS = {
    "demo": Kind(DEMO, 0.2, 1.0),
    "criteo": Kind(CRITEO, 0.5, 0.85),
    "avazu": Kind(AVAZU, 0.17, 0.85),
    "ipinyou": Kind(IPINYOU, 0.0007, 0.7),
    "appstore": Kind(APPSTORE, 0.008, 0.85),
    "repeat": Kind(DEMO, 0.2, 0.6, Repeats("user", "item", share=0.6, favourites=6, deviation=2.0)),
}
