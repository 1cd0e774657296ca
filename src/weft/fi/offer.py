"""Providers' offers, and the result of matching them with the hints of getinfo.

A provider makes `Offer`s: the answer to a caller without hints, the limits up to which hints may raise it, and the
required registration modes. `match.py` makes a `Candidate` of each offer, and an `Explanation` of all.

Source: fi_getinfo(3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..flags import EpType

if TYPE_CHECKING:
    from .attrs import Info


@dataclass
class Offer:
    """An offer of a provider: the answer to a caller without hints, and how far hints may change the answer.

    Attributes:
        info: The answer for fields that are zero in the hints.
        ceilings: "part.field" -> the highest value that hints may request, if higher than the value in info.
        required: mr_mode bits that the application must honour.
        quiet: Secondary capabilities with a cost: reported only if the hints request them or are absent.
        taken: "part.field" whose value comes from the hints, even if it is lower than the offer or 0.
        advisory: "part.field" that is not compared: the answer has the offer's value.
        tclasses: Traffic classes that hints may request.
        remarks: Capability bit, or "part.field" -> why it is not offered and what to do.
    """

    info: Info
    ceilings: dict[str, int] = field(default_factory=dict)
    required: int = 0
    quiet: int = 0
    remarks: dict[int | str, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    advisory: frozenset[str] = frozenset()
    tclasses: frozenset[int] = frozenset()


class Rejection(NamedTuple):
    """One hint that an offer does not meet.

    Attributes:
        hint: The field: "caps", "domain_attr.mr_key_size" ...
        asked: The hint's value, as text.
        offered: The offer's value, as text.
        reason: Why, and what to do; "" if the numbers explain themselves.
    """

    hint: str
    asked: str
    offered: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.hint}: asked {self.asked}, offers {self.offered}" + (f": {self.reason}" if self.reason else "")


class No(Protocol):
    """Says that a hint is not met: the fields of a `Rejection`."""

    def __call__(self, hint: str, asked: str, offered: str, reason: str = "") -> None: ...


class Rejections(list[Rejection]):
    """The hints that an offer does not meet, in the order in which they were found."""

    def no(self, hint: str, asked: str, offered: str, reason: str = "") -> None:
        """Add one (a `No`)."""
        self.append(Rejection(hint, asked, offered, reason))


@dataclass
class Candidate:
    """An offer matched against the hints.

    Attributes:
        provider: Name of the offer's provider.
        domain: Name of the offer's domain.
        type: Endpoint type of the offer.
        info: The Info that getinfo returns for the offer; None if the offer does not meet the hints.
        rejections: The hints that the offer does not meet.
    """

    provider: str
    domain: str
    type: EpType
    info: Info | None
    rejections: list[Rejection]

    @property
    def accepted(self) -> bool:
        """True if the offer meets every hint."""
        return self.info is not None

    def __str__(self) -> str:
        head = f"{self.provider}: {self.domain}, {self.type}"
        if self.info is not None:
            return f"{head}: accepted, caps {self.info.caps!s}"
        return f"{head}: rejected\n" + "\n".join("    " + str(r).replace("\n", "\n    ") for r in self.rejections)


@dataclass
class Explanation:
    """All offers that getinfo looked at, with the reason for each rejection; printable.

    Attributes:
        candidates: Every offer of every provider, in the order in which they would be returned.
        notes: Remarks on the call as a whole.
    """

    candidates: list[Candidate]
    notes: list[str] = field(default_factory=list)

    @property
    def infos(self) -> list[Info]:
        """The result of getinfo (an empty list if it raises NoData)."""
        return [c.info for c in self.candidates if c.info is not None]

    @property
    def accepted(self) -> list[Candidate]:
        """The candidates that meet every hint."""
        return [c for c in self.candidates if c.accepted]

    @property
    def rejected(self) -> list[Candidate]:
        """The candidates that do not meet the hints, each with the hints that rejected it."""
        return [c for c in self.candidates if not c.accepted]

    @property
    def folded(self) -> list[tuple[Candidate, int]]:
        """For readers: the candidates of the provider that the hints name; equal candidates once, with their number.

        Two are equal if they were rejected for the same reasons, or accepted with the same capabilities.
        """
        named = [c for c in self.candidates if all(r.hint != "fabric_attr.prov_name" for r in c.rejections)]
        found: dict[str, tuple[Candidate, int]] = {}
        for one in named or self.candidates:
            first, count = found.get(str(one), (one, 0))
            found[str(one)] = first, count + 1
        return list(found.values())

    def __str__(self) -> str:
        lines = []
        for one, count in self.folded:
            head, *rest = str(one).split("\n")
            lines.append("\n".join([f"  {head}{'' if count == 1 else f' ({count} equal offers)'}", *rest]))
        return "\n".join(lines + [f"  {n}" for n in self.notes])

    __repr__ = __str__
