"""What a launcher says of Slingshot: VNIs, devices, services, traffic classes.

Source: fi_cxi(7) "Authorization Keys", step 6 of the launch workflow; the bits of SLINGSHOT_TCS as Slurm and
`weft launch` write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

NAMES = ("SLINGSHOT_VNIS", "SLINGSHOT_DEVICES", "SLINGSHOT_SVC_IDS", "SLINGSHOT_TCS")
VNI_MAX = 0xFFFF
_TCS = {1: "DEDICATED_ACCESS", 2: "LOW_LATENCY", 4: "BULK_DATA", 8: "BEST_EFFORT"}


@dataclass(frozen=True)
class Slingshot:
    """The job's part of a Slingshot fabric.

    Attributes:
        vnis: The job's virtual networks; a domain without a key is in the first.
        devices: The job's NICs on this host.
        services: The id of the job's service on each device.
        tcs: The job's traffic classes.
    """

    vnis: tuple[int, ...]
    devices: tuple[str, ...]
    services: tuple[int, ...]
    tcs: tuple[str, ...]


def slingshot(environ: Mapping[str, str]) -> tuple[Slingshot | None, list[str]]:
    """The values, None if no variable is set; and their faults, a sentence each."""
    texts = {name: environ[name] for name in NAMES if environ.get(name)}
    if not texts:
        return None, []
    problems: list[str] = []
    vnis = _numbers(texts, "SLINGSHOT_VNIS", 1, VNI_MAX, "a VNI", problems)
    services = _numbers(texts, "SLINGSHOT_SVC_IDS", 1, 0xFFFFFFFF, "a service's id", problems)
    devices = tuple(word.strip() for word in texts.get("SLINGSHOT_DEVICES", "").split(",") if word.strip())
    for name, values in (("SLINGSHOT_VNIS", vnis), ("SLINGSHOT_DEVICES", devices)):
        if len(set(values)) < len(values):
            problems.append(f"{name}={_shown(texts[name])}: an entry is there twice")
    missing = [name for name in NAMES[:3] if name not in texts]
    if missing:
        problems.append(
            f"{', '.join(missing)}: not set, but {', '.join(texts)}: a domain finds its key by all three of "
            f"{', '.join(NAMES[:3])}"
        )
    elif len(devices) != len(texts["SLINGSHOT_SVC_IDS"].split(",")):
        problems.append(
            f"SLINGSHOT_DEVICES={_shown(texts['SLINGSHOT_DEVICES'])} has {len(devices)} entries, SLINGSHOT_SVC_IDS="
            f"{_shown(texts['SLINGSHOT_SVC_IDS'])} has {len(texts['SLINGSHOT_SVC_IDS'].split(','))}: one for each "
            "device is needed"
        )
    tcs = tuple(_classes(texts.get("SLINGSHOT_TCS", ""), problems))
    return Slingshot(vnis, devices, services, tcs), problems


def _numbers(
    texts: Mapping[str, str], name: str, least: int, most: int, what: str, problems: list[str]
) -> tuple[int, ...]:
    found = []
    for word in texts.get(name, "").split(",") if name in texts else ():
        number = int(word) if re.fullmatch(r"\s*[0-9]{1,12}\s*", word, re.ASCII) else -1
        if least <= number <= most:
            found.append(number)
        else:
            problems.append(
                f"{name}={_shown(texts[name])}: {_shown(word)!r} is not {what}: numbers from {least} to {most} joined "
                "by ',', without ranges"
            )
    return tuple(found)


def _classes(text: str, problems: list[str]) -> Iterator[str]:
    if not text:
        return
    try:
        bits = int(text, 0)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0xFFFFFFFF:
        problems.append(f"SLINGSHOT_TCS={_shown(text)}: not a number such as 0xf")
        return
    yield from (name for bit, name in _TCS.items() if bits & bit)
    unknown = bits & ~sum(_TCS)
    if unknown:
        yield hex(unknown)


def _shown(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
