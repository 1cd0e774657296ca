"""What providers offer, and the result of matching the offers against the hints of getinfo.

A provider makes `Offer`s: what it returns to a caller without hints, how far hints may raise its limits, and the
registration modes that it requires. `match.py` makes a `Candidate` of each, and an `Explanation` of all.

Source: fi_getinfo(3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..flags import EpType

if TYPE_CHECKING:
    from .attrs import Info

__all__ = ["Candidate", "Explanation", "Offer", "Rejection"]


@dataclass
class Offer:
    """What a provider has: the answer to a caller without hints, and how far hints may change the answer.

    info       returned where the hints are zero.
    ceilings   "part.field" -> the highest value that hints may ask for, if higher than the value in info.
    required   mr_mode bits that the application must honour.
    quiet      secondary capabilities with a cost: reported only if the hints ask for them, or ask for nothing.
    remarks    capability bit, or "part.field" -> why it is not offered and what to do.
    """

    info: Info
    ceilings: dict[str, int] = field(default_factory=dict)
    required: int = 0
    quiet: int = 0
    remarks: dict[int | str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejection:
    """One hint that an offer does not meet.

    hint      which: "caps", "domain_attr.mr_key_size" ...
    asked     its value, as text.
    offered   what the offer has.
    reason    why, and what to do; "" if the numbers explain themselves.
    """

    hint: str
    asked: str
    offered: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.hint}: asked {self.asked}, offers {self.offered}" + (f": {self.reason}" if self.reason else "")


@dataclass
class Candidate:
    """An offer matched against the hints.

    provider, domain, type   of the offer.
    info                     what getinfo returns for the offer; None if the offer does not meet the hints.
    rejections               the hints that the offer does not meet.
    """

    provider: str
    domain: str
    type: EpType
    info: Info | None
    rejections: list[Rejection]

    @property
    def accepted(self) -> bool:
        """True where the offer meets every hint."""
        return self.info is not None

    def __str__(self) -> str:
        head = f"{self.provider}: {self.domain}, {self.type}"
        if self.info is not None:
            return f"{head}: accepted, caps {self.info.caps!s}"
        return f"{head}: rejected\n" + "\n".join("    " + str(r).replace("\n", "\n    ") for r in self.rejections)


@dataclass
class Explanation:
    """All offers that getinfo looked at, with the reason for each rejection; printable.

    candidates   every offer of every provider, in the order in which they would be returned.
    notes        remarks on the call as a whole.
    """

    candidates: list[Candidate]
    notes: list[str] = field(default_factory=list)

    @property
    def infos(self) -> list[Info]:
        """What getinfo returns (an empty list where it raises NoData)."""
        return [c.info for c in self.candidates if c.info is not None]

    @property
    def accepted(self) -> list[Candidate]:
        """The candidates that meet every hint."""
        return [c for c in self.candidates if c.accepted]

    @property
    def rejected(self) -> list[Candidate]:
        """The candidates that do not, each with the hints that rejected it."""
        return [c for c in self.candidates if not c.accepted]

    def __str__(self) -> str:
        return "\n".join([f"  {c}" for c in self.candidates] + [f"  {n}" for n in self.notes])

    __repr__ = __str__
