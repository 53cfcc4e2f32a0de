"""An agent's conversations of the project, the same on the host and in the cage."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from cagewrap import protected, sessions
from cagewrap.exchange import Exchange
from cagewrap.keeper.care import Care, Keep, Note
from cagewrap.keeper.inheritance import Known
from cagewrap.keeper.request import Request
from cagewrap.paths import Paths
from cagewrap.resumed import resumed_conversation
from cagewrap.sessions import Record
from cagewrap.transcripts import CLAUDE, Format
from cagewrap.twins import Twins, read_positions

BEFORE_S = 0.5
"""How long a message waits for conversations to come in; the rest comes while it runs."""
POLL_S = 0.02
END_S = 5.0
MAX_CWDS = 50


class Conversations(Care):
    """Carries them before a message, while it runs, and before anyone hears that it ended."""

    def __init__(
        self, record: Record, paths: Paths, log: Callable[[str], None], form: Format = CLAUDE
    ) -> None:
        """Reads how far an earlier keeper came."""
        self.name = f"conversations of {form.agent}"
        self._form = form
        self._record = record
        self._home = paths.home_dir(record.name)
        self._file = sessions.conversations_file(paths, record.name, form.agent)
        self._log = log
        kept = sessions.read_object(self._file)
        positions = kept.get("positions")
        brought = kept.get("brought")
        self._positions = {
            projects_dir: read_positions(value if isinstance(value, dict) else {})
            for projects_dir, value in (positions if isinstance(positions, dict) else {}).items()
        }
        self._brought = {str(one) for one in brought} if isinstance(brought, list) else set()
        self._written = set(self._brought)
        self._exchanges: dict[str, Exchange] = {}
        self._cwds: dict[str, None] = {}
        self._said: set[str] = set()
        self._failed = False
        trees = [target for source, target in record.binds if source == record.project]
        self._trees = tuple(dict.fromkeys((record.project, *trees)))

    def before(self, request: Request, note: Note, ready: Callable[[], None]) -> None:
        """Bring in what the host has."""
        exchange = self._exchange(request, note)
        if exchange is not None:
            wanted = self._wanted([os.fsdecode(word) for word in request.argv])
            for cwd in (request.cwd, request.env.get(b"PWD", b"")):
                if self._is_ours(os.fsdecode(cwd)) and len(self._cwds) < MAX_CWDS:
                    self._cwds[os.fsdecode(cwd)] = None
            self._carry(exchange, wanted, BEFORE_S)
            if wanted in self._brought:  # from now on it is this session's too
                self._brought.discard(wanted)
            self._tell(note)
            self._save()
        ready()

    def poll(self) -> None:
        """Carry what the agent or the host has said since."""
        for exchange in self._exchanges.values():
            self._carry(exchange, "", POLL_S)

    def after(self, request: Request, note: Note) -> None:  # noqa: ARG002
        """Carry all there is: who hears of the end may look at the host's files at once."""
        self._carry_all()
        self._tell(note)

    def close(self) -> None:
        """What a background process said last."""
        self._carry_all()

    def hand_on(self, keep: Keep) -> Known:  # noqa: ARG002
        """Where conversations are carried to, and which."""
        self._carry_all()
        return {"directories": list(self._exchanges), "cwds": list(self._cwds)}

    def go_on(self, known: Known) -> None:
        """Carry on."""
        self._cwds = dict.fromkeys(known.get("cwds", ()))
        for projects_dir in known.get("directories", ()):
            self._open(projects_dir)

    def is_our_slug(self, slug: str) -> bool:
        """Whether conversations of this project, and no others, lie under a name on the host."""
        return any(exchange.is_known(slug) for exchange in self._exchanges.values())

    def _carry_all(self) -> None:
        for exchange in self._exchanges.values():
            self._carry(exchange, "", END_S, fully=True)
        self._save()

    def _carry(self, exchange: Exchange, wanted: str, for_s: float, *, fully: bool = False) -> None:
        try:
            exchange.carry(tuple(self._cwds), wanted, time.monotonic() + for_s, fully=fully)
        except Exception as error:  # noqa: BLE001 - whatever an agent writes, the keeper goes on
            if not self._failed:
                self._log(f"conversations: {error!r}")
            self._failed = True

    def _exchange(self, request: Request, note: Note) -> Exchange | None:
        """With the host's directory that this message's claude would use there; None without."""
        find = host_config_dir if self._form is CLAUDE else host_pi_dir
        config_dir = find(request, self._record)
        projects_dir = os.path.join(config_dir, self._form.parts[-1])
        found = self._exchanges.get(projects_dir)
        if found is not None:
            return found
        try:
            if not os.path.isdir(config_dir) and not (self._form is CLAUDE and is_claude(request)):
                return None
            if is_shown(config_dir, self._record):
                self._say(note, f"{config_dir} lies in what the cage sees: nothing is shared of it")
                return None
            sessions.make_private(projects_dir)
        except OSError as error:
            self._log(f"conversations: {error}")
            return None
        return self._open(projects_dir)

    def _open(self, projects_dir: str) -> Exchange:
        positions = self._positions.setdefault(projects_dir, {})
        twins = Twins(self._form, self._is_ours, positions)
        exchange = Exchange(projects_dir, self._home, self._is_ours, twins, self._brought)
        self._exchanges[projects_dir] = exchange
        return exchange

    def _wanted(self, argv: list[str]) -> str:
        """The conversation that a command goes on with, "" for none or an unknown one."""
        if self._form is CLAUDE:
            return resumed_conversation(argv)
        names = (self._form.stem(os.path.basename(word)) for word in argv)
        return next(filter(None, names), "")

    def _is_ours(self, cwd: str) -> bool:
        plain = cwd.startswith("/") and "/../" not in cwd + "/"
        return plain and any(protected.lies_in(cwd, tree) for tree in self._trees)

    def _tell(self, note: Note) -> None:
        for exchange in self._exchanges.values():
            for text in exchange.twins.notes:
                self._say(note, text)
            exchange.twins.notes.clear()

    def _say(self, note: Note, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log(text)
            note(text)

    def _save(self) -> None:
        changed = [one for one in self._exchanges.values() if one.twins.is_changed]
        if not changed and self._brought == self._written:
            return
        for one in changed:
            one.twins.is_changed = False
        self._written = set(self._brought)
        value = {"positions": self._positions, "brought": sorted(self._brought)}
        try:
            sessions.write_json(self._file, value)
        except Exception as error:  # noqa: BLE001 - the next keeper compares the files instead
            self._log(f"conversations: {error}")


def is_claude(request: Request) -> bool:
    """Whether the command is Claude itself, by its name."""
    return os.path.basename(request.argv[0]).startswith(b"claude")


def host_config_dir(request: Request, record: Record) -> str:
    """The directory that Claude, started by this caller on the host, keeps everything in."""
    named = os.fsdecode(request.env.get(b"CLAUDE_CONFIG_DIR", b""))
    return named if named.startswith("/") else os.path.join(record.home, ".claude")


def host_pi_dir(request: Request, record: Record) -> str:
    """The same of pi."""
    named = os.fsdecode(request.env.get(b"PI_CODING_AGENT_DIR", b""))
    return named if named.startswith("/") else os.path.join(record.home, ".pi/agent")


def is_shown(path: str, record: Record) -> bool:
    """Whether a directory of the host lies in something the cage has mounted."""
    real = os.path.realpath(path)
    return any(protected.lies_in(real, source) for source, _ in record.binds)
