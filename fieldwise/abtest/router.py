"""Assigns users to the arms of an A/B test by a salted hash of one field: a user always sees the same arm."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.data.read.formats import text_of

MISSING_UNIT = ""


@dataclass(frozen=True)
class Router:
    """The arms with their shares of the traffic; `field` is hashed with `salt`."""

    arms: tuple[str, ...]
    shares: tuple[float, ...]
    field: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.arms):
            found = f"{len(self.shares)} for {', '.join(self.arms)}"
            example = ",".join([f"{100 // len(self.arms)}"] * len(self.arms))
            raise ConfigError(f"a split needs a share for each arm, found {found}; write --split {example}")
        if not all(math.isfinite(share) and share >= 0 for share in self.shares) or not sum(self.shares) > 0:
            raise ConfigError(f"shares of a split are 0 or more, and not all 0, found {self.shares}")
        if len(set(self.arms)) < len(self.arms):
            raise ConfigError(f"arms need different names, found {', '.join(self.arms)}")

    @property
    def expected(self) -> dict[str, float]:
        """The share of the traffic that each arm should get."""
        total = sum(self.shares)
        return {arm: share / total for arm, share in zip(self.arms, self.shares, strict=True)}

    def unit(self, row: Mapping[str, Any]) -> str:
        """The unit of a row: the text of its split field, empty if it is missing."""
        return (text_of(row.get(self.field)) or MISSING_UNIT) if self.field else MISSING_UNIT

    def arm(self, unit: str, request: str) -> int:
        """The index of a unit's arm; rows without a unit are spread over the arms by their request."""
        if len(self.arms) == 1:
            return 0
        key = f"{self.salt}\0u\0{unit}" if unit else f"{self.salt}\0r\0{request}"
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        point = int.from_bytes(digest, "big") / 2**64 * sum(self.shares)
        for number, share in enumerate(self.shares):
            point -= share
            if point < 0:
                return number
        return max(number for number, share in enumerate(self.shares) if share)

    def named(self, arm: str) -> int:
        """The index of an arm that a request names."""
        if arm not in self.arms:
            raise ConfigError(unknown("arm", arm, self.arms))
        return self.arms.index(arm)


def shares_of(text: str, arms: int) -> tuple[float, ...]:
    """`50,50` as numbers; equal shares if the text is empty.

    >>> shares_of("90, 10", 2), shares_of("", 2)
    ((90.0, 10.0), (1.0, 1.0))
    """
    if not text:
        return (1.0,) * arms
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--split takes numbers separated by commas, such as 50,50; found '{text}'") from None


def arm_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Names of arms from the names of their folders; a repeated name gets a number.

    >>> arm_names(["pin", "fm", "pin"])
    ('pin', 'fm', 'pin-3')
    """
    return tuple(f"{label}-{place + 1}" if label in labels[:place] else label for place, label in enumerate(labels))
