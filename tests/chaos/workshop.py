"""A project in which there is something to lose: a repository with history, settings that the
host's programs obey, a login, conversations; agents that write to all of it, and an owner."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arena import Arena, Message, arguments, has_open, kill

ACCESS, REFRESH = "sk-ant-oat01-ACCESS", "sk-ant-ort01-REFRESH"
HELD = {
    ".claude/settings.json": '{"model": "owner"}\n',
    ".vscode/settings.json": '{"owner": 1}\n',
    ".husky/pre-commit": "#!/bin/sh\nexit 0\n",
    ".envrc": "export OWNER=1\n",
}
ME = "".join(
    f"export GIT_{who}_NAME=Agent GIT_{who}_EMAIL=agent@example.com; "
    for who in ("AUTHOR", "COMMITTER")
)
WORK = (
    ME
    + """
mark=$1 session=$2 chat=$3 ran=$4 count=$5
mkdir -p "${chat%/*}"
plant() { printf '#!/bin/sh\\ntouch %s 2>/dev/null\\nexit 0\\n' "$ran" >"$1"; chmod +x "$1"; }
plant .husky/post-index-change; plant .husky/pre-commit; plant .git/hooks/post-commit
case $mark in *[048].*) plant .envrc;; esac  # who puts it there all the time is ended
git config core.fsmonitor "touch $ran 2>/dev/null; false"
echo up
n=0
while [ $n -lt $count ]; do
    n=$((n + 1))
    echo "{\\"evil\\": \\"$mark $n\\"}" >.claude/settings.json
    echo evil >.vscode/tasks.json
    parent=$(git rev-parse -q --verify "refs/heads/$session" || git rev-parse HEAD)
    oid=$(git commit-tree -p "$parent" -m "$mark $n" 'HEAD^{tree}') || exit 3
    git update-ref "refs/heads/$session" "$oid" && echo "did $oid"
    echo "$mark $n" >"file-$session"
    if git add "file-$session" 2>/dev/null && git commit -q -m "$mark $n" 2>/dev/null
    then echo "did $(git rev-parse HEAD)"; fi
    printf '{"type":"user","cwd":"%s","uuid":"%s","message":{"role":"user"}}\\n' \\
        "$PWD" "$mark-$n" >>"$chat"
    echo "said $mark-$n"
done
"""
)
"""An agent that commits on a branch of its own and on the one that is checked out, plants what the
owner's git and editor would run, and writes a conversation. It says what it has done."""
NEXT = (
    ME
    + """
set -e
grep -q ACCESS /run/cagewrap/login/.credentials.json
parent=$(git rev-parse -q --verify "refs/heads/$2" || git rev-parse HEAD)
oid=$(git commit-tree -p "$parent" -m "$1" 'HEAD^{tree}')
git update-ref "refs/heads/$2" "$oid"
tries=0
until git commit -q --allow-empty -m "$1"; do  # somebody else commits at this moment
    tries=$((tries + 1)); [ $tries -lt 10 ] || exit 4; sleep 0.2
done
echo "did $oid"; echo "did $(git rev-parse HEAD)"
read -r a; echo "$((a * a))"
""".replace("ACCESS", ACCESS)
)
"""A message that needs all of it: the login, the agent's git without a lock in its way."""


class Workshop:
    """The project of an arena, its owner, and what must not be lost in it."""

    def __init__(self, root: Path) -> None:
        """Makes everything."""
        self.arena = Arena(root)
        self.project = self.arena.project
        self.ran = root / "ran"
        self.config_dir = root / "claude"
        (self.config_dir / "projects").mkdir(parents=True)
        self.arena.env["CLAUDE_CONFIG_DIR"] = str(self.config_dir)
        self.env = {
            "HOME": str(root),
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_NAME": "Me" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "me@example.com" for who in ("AUTHOR", "COMMITTER")},
        }
        self.commits: set[str] = set()
        self.said: dict[str, list[str]] = {}
        self.chats: dict[str, str] = {}
        self._make_project()
        self._log_in()

    def _make_project(self) -> None:
        self.git("init", "-q", "-b", "main")
        self.git("config", "core.hooksPath", ".husky")
        # Tidying in the background would go on while all is looked at.
        self.git("config", "gc.autoDetach", "false")
        for path, text in HELD.items():
            file = self.project / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        (self.project / ".husky/pre-commit").chmod(0o755)
        for number in range(12):
            (self.project / "file").write_text(f"{number}\n")
            self.git("add", ".")
            self.git("commit", "-q", "-m", f"{number}")
            self.git("tag", f"v{number}")
            if number == 8:
                self.git("branch", "old")
                self.git("gc", "-q")
        self.config = (self.project / ".git/config").read_text()
        self.commits |= self.reachable()

    def _log_in(self) -> None:
        login = self.arena.root / "state/cagewrap/login/claude"
        login.mkdir(parents=True, mode=0o700)
        for path in (login, login.parent, login.parent.parent):
            path.chmod(0o700)
        values = {
            "accessToken": ACCESS, "refreshToken": REFRESH,
            "expiresAt": round((time.time() + 86400) * 1000), "scopes": ["user:inference"],
        }  # fmt: skip
        self.login_file = login / ".credentials.json"
        self.login = json.dumps({"claudeAiOauth": values})
        self.login_file.write_text(self.login)
        self.login_file.chmod(0o600)

    # -- the owner -----------------------------------------------------------------------------

    def git(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.project, env=self.env, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done.stdout

    def reachable(self) -> set[str]:
        """Every commit that a ref of the owner's leads to."""
        return set(self.git("rev-list", "--all").split())

    @contextmanager
    def owner_at_work(self) -> Iterator[None]:
        """The owner's prompt asks for git's status again and again, and the owner commits."""
        is_over = threading.Event()

        def work() -> None:
            number = 0
            while not is_over.wait(0.05):
                number += 1
                self.git("status", "--porcelain", check=False)
                if number % 8 == 0:
                    self.git("commit", "-q", "--allow-empty", "-m", "owner", check=False)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    # -- agents --------------------------------------------------------------------------------

    def chat(self, session: str) -> str:
        """The conversation of a session, as the agent names it."""
        slug = "".join(one if one.isalnum() else "-" for one in str(self.project))
        name = self.chats.setdefault(session, str(uuid.uuid4()))
        return f"projects/{slug}/{name}.jsonl"

    def start(self, session: str, mark: str, count: int = 40) -> Message:
        """An agent at work."""
        home = Path.home() / ".claude"
        words = (session, f"{home}/{self.chat(session)}", str(self.ran), str(count))
        return self.arena.start(session, WORK, mark, *words)

    def follow(self, session: str, mark: str) -> Message:
        """The next message."""
        return self.arena.start(session, NEXT, mark, session)

    def note(self, session: str, output: bytes) -> None:
        """Write down what an agent said it has done. Only whole lines: it may have been killed."""
        for line in output.decode().split("\n")[:-1]:
            what, _, which = line.partition(" ")
            if what == "did":
                self.commits.add(which)
            elif what == "said":
                self.said.setdefault(session, []).append(which)

    def kill_carrier(self, name: str, within_s: float, *, with_keeper: bool = False) -> list[int]:
        """Kill it in the middle of its work; whom that was."""
        keeper = self.arena.keeper(name)
        deadline = time.monotonic() + within_s
        while keeper and time.monotonic() < deadline and arguments(keeper):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{keeper}/task/{keeper}/children").read_text()
                for pid in map(int, text.split()):
                    if has_open(pid, f"/{name}/git/base.json.lock"):
                        victims = [pid, keeper] if with_keeper else [pid]
                        killed = [kill(victim) for victim in victims]
                        return victims if all(killed) else []
        return []

    # -- what must be so -----------------------------------------------------------------------

    def missing(self) -> list[str]:
        """Commits that an agent said it made, and no ref of the owner's leads to."""
        return sorted(self.commits - self.reachable())

    def wrong(self) -> list[str]:
        """What is not as it must be once a message has ended."""
        found = [f"commit {oid} is lost" for oid in self.missing()]
        fsck = subprocess.run(
            ["git", "fsck", "--strict", "--no-dangling", "--no-progress"], cwd=self.project,
            env=self.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if fsck.returncode or fsck.stdout:
            found.append(f"fsck: {fsck.stdout}{fsck.stderr}")
        for path, text in HELD.items():
            if (self.project / path).read_text() != text:
                found.append(f"{path} is changed")
        for directory in {path.split("/")[0] for path in HELD if "/" in path}:
            there = {str(p.relative_to(self.project)) for p in (self.project / directory).iterdir()}
            found += sorted(there - HELD.keys())
        if self.ran.exists():
            found.append("what an agent planted has run")
        if "fsmonitor" in (self.project / ".git/config").read_text():
            found.append("the repository's configuration names a program")
        if (self.project / ".git/hooks/post-commit").exists():
            found.append("a hook of an agent's")
        if self.login_file.read_text() != self.login:
            found.append("the login is changed")
        return found + self.wrong_chats()

    def wrong_chats(self) -> list[str]:
        """Lines of conversations that are lost, twice there, or in another order."""
        found = []
        for session, said in self.said.items():
            file = self.config_dir / self.chat(session)
            lines = file.read_bytes().split(b"\n") if file.exists() else [b""]
            there = [json.loads(line)["uuid"] for line in lines if line]
            if len(set(there)) != len(there):
                found.append(f"{session}'s conversation has lines twice")
            if [one for one in there if one in set(said)] != said:
                found.append(f"{session}'s conversation lacks {sorted({*said} - {*there})}")
        return found

    def litter(self) -> list[str]:
        """Locks and temporary files, of git's and of ours; not those of the owner's `git gc`."""
        names = (
            (os.path.join(above, name))
            for above, directories, files in os.walk(self.project)
            for name in (*directories, *files)
        )
        return [
            name
            for name in names
            if (name.endswith(".lock") and not name.endswith("/gc.log.lock"))
            or os.path.basename(name).startswith((".cagewrap-", "tmp_obj", "tmp_pack"))
        ]
