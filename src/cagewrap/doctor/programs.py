"""The programs a cage is made with."""

from __future__ import annotations

import os
import re
import struct

from cagewrap.doctor.host import Host
from cagewrap.doctor.result import CheckResult, failed, passed, raised, warned
from cagewrap.errors import NetworkSetupError, PodmanMissingError
from cagewrap.runtimes.init import find_init

OLDEST_PODMAN = (4, 3)
_VERSION_S = 20.0
_UPGRADE = "upgrade to Debian 12, Ubuntu 24.04 or newer: sudo do-release-upgrade"
_PACKAGES = {"pasta": "passt"}
_ELF_HEADER_BYTES = 64
_PROGRAM_INTERPRETER = 3


def podman_version(text: str) -> tuple[int, ...]:
    """The numbers of `podman version 4.3.1`, () when there are none."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number) for number in found.groups() if number) if found else ()


def check_podman(host: Host) -> tuple[CheckResult, tuple[int, ...]]:
    """podman is there and new enough; also its version, () when it cannot be used."""
    wanted = "podman {}.{} or newer".format(*OLDEST_PODMAN)
    install = "sudo apt-get install podman"
    if not host.find("podman"):
        found = "podman is not on PATH, and a cage cannot be made without it"
        return failed("podman", PodmanMissingError, found, wanted, install), ()
    outcome = host.run("podman", "--version", timeout_s=_VERSION_S)
    said = outcome.stdout.decode(errors="replace").strip()
    version = podman_version(said)
    if outcome.returncode or not version:
        found = f"`podman --version` failed: {(outcome.stderr or said).strip()[:200]}"
        return failed("podman", PodmanMissingError, found, wanted, install), ()
    if version < OLDEST_PODMAN:
        found = f"{said} is too old"
        return failed("podman", PodmanMissingError, found, wanted, _UPGRADE), ()
    return passed("podman", said, wanted), version


def check_program(host: Host, check: str, program: str, why: str) -> CheckResult:
    """A program is on PATH."""
    place = host.find(program)
    if not place:
        package = _PACKAGES.get(program, program)
        return failed(
            check, PodmanMissingError, f"{program} is not on PATH", why,
            f"sudo apt-get install {package}",
        )  # fmt: skip
    return passed(check, place, why)


def check_init() -> CheckResult:
    """catatonit is there and static, because it runs inside any image."""
    wanted = "catatonit, a static program: the first process of a cage"
    try:
        place = find_init()
    except PodmanMissingError as error:
        return raised("init", error, wanted)
    if not is_static(place):
        found = f"{place} needs a C library, and may not run in an image that has another"
        return warned("init", found, wanted, "sudo apt-get install --reinstall catatonit")
    return passed("init", place, wanted)


def check_network_helper(host: Host, version: tuple[int, ...]) -> CheckResult:
    """The program that carries a rootless container's network: pasta since podman 5."""
    helper = "pasta" if version >= (5,) else "slirp4netns"
    wanted = f"{helper}, which podman {version[0]} makes a cage's network with"
    place = host.find(helper)
    if not place:
        fix = f"sudo apt-get install {_PACKAGES.get(helper, helper)}"
        found = f"{helper} is not on PATH"
        return failed("network-helper", NetworkSetupError, found, wanted, fix)
    return passed("network-helper", place, wanted)


def is_static(path: str) -> bool:
    """Whether an ELF program runs without a loader; True for what cannot be read as one."""
    try:
        with open(os.path.realpath(path), "rb") as file:
            header = file.read(_ELF_HEADER_BYTES)
            if header[:5] != b"\x7fELF\x02":
                return True
            order = "<" if header[5] == 1 else ">"
            (offset,) = struct.unpack_from(order + "Q", header, 32)
            size, count = struct.unpack_from(order + "HH", header, 54)
            file.seek(offset)
            table = file.read(size * count)
    except (OSError, struct.error, IndexError):
        return True
    kinds = (struct.unpack_from(order + "I", table, at)[0] for at in range(0, len(table), size))
    return _PROGRAM_INTERPRETER not in kinds
