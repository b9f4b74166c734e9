"""In how many training rows a column's values are to be hidden, so that rows with new ones look like some of them.

As the world will: the validation rows come after the training rows, or beside them, and so say how many of the next
rows have a value that training does not know. Where training has fewer such rows, the rest is made by hiding values.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.dataset import Tally
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.hiding import blank
from fieldwise.data.kinds.kind import BY_BUCKET

# Rows that tell a share well enough.
MOST_ROWS = 200_000
# Whether new values are to be expected or not, each column is hidden in one row of a hundred, in up to one of twenty
# where it takes more to hide it in 50 rows of the rarer label; but all columns together in 15 % of the rows.
LEAST_RARE, LEAST_SHARE, LEAST_SHARE_OF_FEW, ALL_COLUMNS = 50, 0.01, 0.05, 0.15
# A tenth of the rows tells what to say of new values as well as half of them does (docs/data.md), and what a known one
# means is learnt from the rest.
MOST_SHARE = 0.1


def shares_to_hide(encoder: Encoder, folder: Path, tally: Tally) -> dict[str, float]:
    """For each column with values that can be new: the share of the training rows to hide it in, by the ids there."""
    names = hideable(encoder)
    if not names or "train" not in tally.rows:
        return {}
    rare = min(tally.positives["train"], tally.rows["train"] - tally.positives["train"])
    floor = min(LEAST_SHARE_OF_FEW, max(LEAST_SHARE, LEAST_RARE / max(1, rare)), ALL_COLUMNS / len(names))
    train = _sample(folder, "train")
    later = _sample(folder, "valid") if "valid" in tally.rows else train[:0]
    found = {}
    for name in names:
        gap = blank(name, encoder.names, encoder.layout, encoder.schema.history, encoder.schema.lost_pasts)
        has, will = (float(gap.there(ids).mean()) if len(ids) else 0.0 for ids in (train, later))
        wanted = min(max(floor, will), MOST_SHARE)
        if has < wanted:
            found[name] = round((wanted - has) / (1 - has), 6)
    return found


def hideable(encoder: Encoder) -> list[str]:
    """The columns of fields and history keys with values that can be new; none where leaves of trees hang on them."""
    if encoder.leaves is not None:
        return []
    fields = {field.name: field for field in encoder.schema.fields}
    known = [name for name, field in fields.items() if not field.why_always_known]
    pasts = [name for key in encoder.schema.lost_pasts.values() for name in key.split("*")]
    keys = [name for name in dict.fromkeys([*encoder.schema.history.columns, *pasts]) if name not in known]
    return [*known, *(name for name in keys if name not in fields or fields[name].history_key != BY_BUCKET)]


def _sample(folder: Path, part: str) -> NDArray[np.int32]:
    """Evenly spaced rows of a part."""
    ids = np.load(folder / part / "ids.npy", mmap_mode="r", allow_pickle=False)
    return np.ascontiguousarray(ids[:: -(-len(ids) // MOST_ROWS) or 1])
