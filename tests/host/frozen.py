"""The frozen program, made in a Debian 12, as a layer of a test host: /opt/cagewrap/frozen.

    python3 tests/host/frozen.py [DIR]      make it, copy its files to DIR; prints where they are
    python3 tests/host/frozen.py --again    make it once more; fails unless that is the same

out/ has the files that are published; program/ the unpacked archive, which is `cagewrap` on PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pieces
from pieces import CACHE, HERE, REPO, Piece, recipe_hash, remove, run

FROZEN = "/opt/cagewrap/frozen"
SUITE = "bookworm"
VENV = "/opt/freeze"
_REQUIREMENTS = HERE / "requirements-freeze.txt"
_SPEC = sorted(file for file in (REPO / "spec").iterdir() if file.is_file())


def _base() -> Piece:
    return pieces.debian("root", "base-freeze", SUITE, HERE / "packages.freeze", None)


def _wheels() -> Piece:
    python = (_base().ensure() / "usr/bin/python3").readlink().name.removeprefix("python")

    def build(target: Path) -> None:
        run(
            pieces.dev_venv() / "bin/pip", "download", "-qq", "--dest", target,
            "--only-binary", ":all:", "--implementation", "cp", "--python-version", python,
            "--requirement", str(_REQUIREMENTS),
        )  # fmt: skip

    return Piece("wheels", "freeze", recipe_hash(python, _REQUIREMENTS), build)


def _venv() -> Piece:
    script = f"""
        python3 -m venv {VENV}
        {VENV}/bin/pip install --quiet --no-index --find-links /mnt/wheels \
            --requirement /mnt/host/{_REQUIREMENTS.name}
    """

    def build(target: Path) -> None:
        binds = [(_wheels().ensure(), "wheels"), (HERE, "host")]
        pieces.layer([_base().ensure()], target, binds, script)

    return Piece("root", "venv-freeze", recipe_hash(_base().hash, script, _REQUIREMENTS), build)


def frozen() -> Piece:
    commit = _commit()
    script = f"""
        PYTHON={VENV}/bin/python3 /mnt/repo/spec/build {FROZEN}/out {commit}
        mkdir -p {FROZEN}/program /usr/local/bin
        tar -xzf {FROZEN}/out/cagewrap-*.tar.gz -C {FROZEN}/program --strip-components=1
        ln -s {FROZEN}/program/cagewrap /usr/local/bin/cagewrap
        rm -rf /root/.cache
    """
    source = pieces.sources_hash(REPO)

    def build(target: Path) -> None:
        copy = target.with_name(target.name + ".src")
        remove(copy)
        for file in [*pieces.sources(REPO), *_SPEC]:
            to = copy / file.relative_to(REPO)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to)
        if pieces.sources_hash(copy) != source:
            raise SystemExit("tests/host: src/ changed while it was read: start again")
        pieces.layer([_venv().ensure(), _base().ensure()], target, [(copy, "repo")], script)
        remove(copy)

    return Piece("root", "frozen", recipe_hash(_venv().hash, script, source, *_SPEC), build)


def _commit() -> str:
    """What is built, as far as git knows it."""
    asked = [
        "git",
        "-C",
        str(REPO),
        "describe",
        "--always",
        "--abbrev=12",
        "--exclude=*",
        "--dirty",
    ]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or "unknown"


def again() -> None:
    """Two builds of the same sources are the same."""
    piece = frozen()
    other = CACHE / "tmp" / "frozen-again"
    remove(other)
    piece.build(other)
    sums = [at / FROZEN.lstrip("/") / "out/SHA256SUMS" for at in (piece.ensure(), other)]
    found = [file.read_text() for file in sums]
    remove(other)
    if found[0] != found[1]:
        raise SystemExit(f"tests/host: two builds of the same differ:\n{found[0]}{found[1]}")


def main() -> None:
    if sys.argv[1:] == ["--again"]:
        again()
        return
    out = frozen().ensure() / FROZEN.lstrip("/") / "out"
    if sys.argv[1:]:
        place = Path(sys.argv[1])
        place.mkdir(parents=True, exist_ok=True)
        for file in out.iterdir():
            shutil.copy(file, place)
        out = place
    print(out)


if __name__ == "__main__":
    main()
