"""What the odd images of tests/image are made of, as a layer of the test host: /opt/odd.

debian13.tar    Debian 13 with nothing but what is essential and apt
busybox         one static program
ld-musl.so      musl's C library, which is its loader too
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pieces import ISOLATED, Piece, recipe_hash, remove, run

ODD = "/opt/odd"
_OPTIONS = (
    "--mode=root", "--quiet",
    '--aptopt=Acquire::Retries "5"', '--aptopt=Acquire::Check-Valid-Until "false"',
    '--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
)  # fmt: skip
_SUITE = "trixie"
_PACKAGES = "busybox-static,musl"


def odd_images() -> Piece:
    def build(target: Path) -> None:
        place = target / ODD.lstrip("/")
        place.mkdir(parents=True)
        run(*ISOLATED, "mmdebstrap", *_OPTIONS, "--variant=minbase", _SUITE, place / "debian13.tar")
        tree = target.with_name(target.name + ".tree")
        remove(tree)
        extract = ("--variant=extract", f"--include={_PACKAGES}")
        run(*ISOLATED, "mmdebstrap", *_OPTIONS, *extract, _SUITE, tree)
        shutil.copy(tree / "usr/bin/busybox", place)
        machine = os.uname().machine
        shutil.copy(tree / f"usr/lib/{machine}-linux-musl/libc.so", place / "ld-musl.so")
        remove(tree)
        target.chmod(0o755)

    return Piece("root", "odd", recipe_hash(*_OPTIONS, _SUITE, _PACKAGES), build)
