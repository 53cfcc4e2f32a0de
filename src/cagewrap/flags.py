"""The one table of settings, and the parser of what stands before `--`.

Each row drives the flag, the key of the configuration file, the environment variable, the help
and the reference page. The parser is written by hand: it runs before the agent does, where click
and argparse cost more than the whole hand-over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar, cast

from cagewrap import agentspec, loginspec, mountspec, values
from cagewrap.errors import UsageError
from cagewrap.model import (
    DEFAULT_IMAGE,
    AgentLogin,
    AgentProgram,
    Identity,
    LoginMode,
    Mount,
    NetworkMode,
    PortForward,
)
from cagewrap.values import BadValueError, EnvEntry

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

HELP_HINT = "cagewrap --help"


class Kind(Enum):
    """How a setting is given: one value, a switch, a list of items, or a table of pairs."""

    VALUE = "value"
    SWITCH = "switch"
    LIST = "list"
    TABLE = "table"


class Setting(NamedTuple, Generic[T_co]):
    """One row. Lists and tables parse to a tuple of one item, so that levels add up.

    key: in the file and in `cagewrap config`; in_file says whether the file may hold it.
    flag, env: "" where there is none. item, pair: how a TOML value becomes the flag's text.
    of_machine: holds for every project, so that no project's table has it.
    replaces: a later level's list takes the place of an earlier one's instead of adding to it.
    is_sensitive: the value may be a secret, so no message repeats it.
    """

    key: str
    flag: str
    metavar: str
    kind: Kind
    env: str
    parse: Callable[[str], T_co]
    default: T_co
    help: str
    in_file: bool = True
    item: Callable[[object], str] = values.item_text
    pair: Callable[[str, object], str] = values.pair_text
    replaces: bool = False
    is_sensitive: bool = False
    of_machine: bool = False


def _each(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """The parser of one item of a list."""
    return lambda text: (parse(text),)


# fmt: off
IMAGE: Setting[str] = Setting(
    "image", "--image", "REF", Kind.VALUE, "CAGEWRAP_IMAGE", values.parse_text, DEFAULT_IMAGE,
    "the image a new cage is made from")
IMAGE_BASE: Setting[str] = Setting(
    "image.base", "", "BASE", Kind.VALUE, "", values.parse_base, "auto",
    "what the image that cagewrap builds stands on: auto, packages, or an image", of_machine=True)
IMAGE_TARGET: Setting[str] = Setting(
    "image.target", "", "TARGET", Kind.VALUE, "", values.parse_target, "workbench",
    "workbench, or desktop with a browser", of_machine=True)
IMAGE_PACKAGES: Setting[tuple[str, ...]] = Setting(
    "image.packages", "", "PKG", Kind.LIST, "", _each(values.parse_package), (),
    "Debian packages to add", of_machine=True)
IMAGE_RUN: Setting[tuple[str, ...]] = Setting(
    "image.run", "", "COMMAND", Kind.LIST, "", _each(values.parse_word), (),
    "shell commands to run after that, as root of the image", of_machine=True)
IMAGE_CONTAINERFILE: Setting[str] = Setting(
    "image.containerfile", "", "PATH", Kind.VALUE, "", values.parse_path, "",
    "a Containerfile to build on top of it", of_machine=True)
IMAGE_SUITE: Setting[str] = Setting(
    "image.suite", "", "SUITE", Kind.VALUE, "", values.parse_suite, "trixie",
    "its release of Debian: trixie or bookworm", of_machine=True)
IMAGE_MIRRORS: Setting[tuple[str, ...]] = Setting(
    "image.mirrors", "", "LINE", Kind.LIST, "", _each(values.parse_text), (),
    "where its packages come from: an address, or a line of sources.list", of_machine=True)
IMAGE_APT_OPTIONS: Setting[tuple[str, ...]] = Setting(
    "image.apt_options", "", "OPTION", Kind.LIST, "", _each(values.parse_text), (),
    "settings of apt in it", of_machine=True)
SESSION: Setting[str] = Setting(
    "session", "--session", "NAME", Kind.VALUE, "CAGEWRAP_SESSION", values.parse_session, "",
    "a cage of its own for this name within the project", in_file=False)
PROJECT: Setting[str] = Setting(
    "project", "--project", "DIR", Kind.VALUE, "", values.parse_word, "",
    "the directory the agent works on (default: the enclosing git work tree, or the current one)",
    in_file=False)
RM: Setting[bool] = Setting(
    "rm", "--rm", "", Kind.SWITCH, "CAGEWRAP_RM", values.parse_switch, False,  # noqa: FBT003
    "a cage for this one command, deleted when it ends", item=values.switch_text)
RUNTIME: Setting[str] = Setting(
    "runtime", "--runtime", "NAME", Kind.VALUE, "CAGEWRAP_RUNTIME", values.parse_runtime, "crun",
    "the OCI runtime: crun or runc")
USER: Setting[Identity] = Setting(
    "user", "--user", "WHO", Kind.VALUE, "CAGEWRAP_USER", values.parse_identity, Identity.ROOT,
    "who the agent is inside: root (you outside) or owner (your own uid)")
NETWORK: Setting[NetworkMode] = Setting(
    "network", "--network", "MODE", Kind.VALUE, "CAGEWRAP_NETWORK", values.parse_network,
    NetworkMode.OPEN, "open (the internet, not this machine's loopback) or none")
MOUNT: Setting[tuple[Mount, ...]] = Setting(
    "mount", "--mount", "SPEC", Kind.LIST, "", _each(mountspec.parse_mount), (),
    "one more path inside: PATH[,rw] or source=PATH,target=PATH[,rw]; read-only unless rw",
    item=mountspec.mount_text)
HIDE: Setting[tuple[str, ...]] = Setting(
    "hide", "--hide", "PATH", Kind.LIST, "", _each(values.parse_hidden), (),
    "a path of the project that is empty inside; * ? [] and ** are patterns")
ENV: Setting[tuple[EnvEntry, ...]] = Setting(
    "env", "--env", "NAME[=VALUE]", Kind.TABLE, "", _each(values.parse_env), (),
    "set a variable; NAME alone passes yours, !NAME does not pass it", is_sensitive=True)
PASS_ENV: Setting[tuple[EnvEntry, ...]] = Setting(
    "pass_env", "", "NAME", Kind.LIST, "", _each(values.parse_pass), (),
    "names or patterns (LC_*) of variables to pass; ! in front: not to pass")
SECRET: Setting[tuple[EnvEntry, ...]] = Setting(
    "secrets", "--secret", "NAME[=FILE]", Kind.LIST, "", _each(values.parse_secret), (),
    "pass your variable NAME, or set it to FILE's content, and never show the value",
    is_sensitive=True)
SECRET_FILES: Setting[tuple[EnvEntry, ...]] = Setting(
    "secret_files", "", "NAME=FILE", Kind.TABLE, "", _each(values.parse_secret), (),
    "variables set to the content of a file, never shown", is_sensitive=True)
MEMORY: Setting[int | None] = Setting(
    "memory", "--memory", "SIZE", Kind.VALUE, "CAGEWRAP_MEMORY", values.parse_memory, None,
    "the most memory a cage may use: 512m, 4g", item=values.number_text)
CPUS: Setting[float | None] = Setting(
    "cpus", "--cpus", "NUMBER", Kind.VALUE, "CAGEWRAP_CPUS", values.parse_cpus, None,
    "the most CPU time a cage may use: 2, 0.5", item=values.number_text)
PIDS: Setting[int | None] = Setting(
    "pids", "--pids", "NUMBER", Kind.VALUE, "CAGEWRAP_PIDS", values.parse_pids, None,
    "the most processes and threads; -1 is no limit", item=values.number_text)
SHM_SIZE: Setting[int | None] = Setting(
    "shm_size", "--shm-size", "SIZE", Kind.VALUE, "CAGEWRAP_SHM_SIZE", values.parse_size, None,
    "the size of /dev/shm: 64m", item=values.number_text)
DEVICE: Setting[tuple[str, ...]] = Setting(
    "device", "--device", "DEVICE", Kind.LIST, "", _each(values.parse_device), (),
    "a device to add: /dev/NAME[:TARGET][:rwm] or a CDI name")
PUBLISH: Setting[tuple[PortForward, ...]] = Setting(
    "publish", "--publish", "[PORT:]PORT", Kind.LIST, "", _each(values.parse_ports), (),
    "a server in the cage, reached on this machine's loopback: HOSTPORT:CAGEPORT",
    item=values.number_text)
HOST_PORT: Setting[tuple[PortForward, ...]] = Setting(
    "host_port", "--host-port", "[PORT:]PORT", Kind.LIST, "", _each(values.parse_ports), (),
    "a server on this machine's loopback, reached on the cage's loopback: CAGEPORT:HOSTPORT",
    item=values.number_text)
PODMAN_ARG: Setting[tuple[str, ...]] = Setting(
    "podman_arg", "--podman-arg", "WORD", Kind.LIST, "", _each(values.parse_word), (),
    "one more word for podman create")
SHARE: Setting[tuple[tuple[str, bool], ...]] = Setting(
    "share", "--share", "WHAT", Kind.TABLE, "", _each(values.parse_share), (),
    "git-identity and claude (on unless no-…), ssh-agent, gh, gitconfig, nix",
    pair=values.share_text)
CACHE: Setting[tuple[str, ...]] = Setting(
    "cache", "--cache", "NAME", Kind.LIST, "", _each(values.parse_cache), (),
    "downloads that cages share: apt, cargo, npm, pip, uv")
SESSION_ENV: Setting[tuple[str, ...]] = Setting(
    "session_env", "--session-env", "NAME", Kind.LIST, "", _each(values.parse_name), (),
    "a variable of your harness that names the session", replaces=True)
IDLE_STOP: Setting[float] = Setting(
    "idle_stop", "--idle-stop", "TIME", Kind.VALUE, "CAGEWRAP_IDLE_STOP", values.parse_duration,
    1800.0, "how long after the last message a cage stops: 90s, 30m, 2h, never")
KEEP_FOR: Setting[float] = Setting(
    "keep_for", "--keep-for", "TIME", Kind.VALUE, "CAGEWRAP_KEEP_FOR", values.parse_duration,
    30 * 86400.0, "how long an unused session is kept before gc deletes it: 30d, never")
LOGIN: Setting[LoginMode] = Setting(
    "login.mode", "--login", "MODE", Kind.VALUE, "CAGEWRAP_LOGIN", values.parse_login_mode,
    LoginMode.AUTO, "how the agent is logged in: auto, access, broker, token, directory or none")
LOGIN_CLAUDE: Setting[str] = Setting(
    "login.claude", "", "PATH", Kind.VALUE, "", values.parse_path, "",
    "the claude of this machine that renews the login")
LOGIN_TOKEN_COMMAND: Setting[tuple[str, ...]] = Setting(
    "login.token_command", "", "WORD", Kind.LIST, "", _each(values.parse_word), (),
    "a command that prints the token", replaces=True)
LOGIN_AGENTS: Setting[tuple[AgentLogin, ...]] = Setting(
    "login.NAME", "", "TABLE", Kind.TABLE, "", _each(loginspec.parse_agent), (),
    "an API that an agent reaches through the broker", pair=loginspec.agent_text,
    is_sensitive=True)
AGENTS: Setting[tuple[AgentProgram, ...]] = Setting(
    "agents.NAME", "", "TABLE", Kind.TABLE, "", _each(agentspec.parse_agent), (),
    "which program an agent is: host, image, auto or a path", pair=agentspec.agent_text)
DRY_RUN: Setting[bool] = Setting(
    "dry_run", "--dry-run", "", Kind.SWITCH, "", values.parse_switch, False,  # noqa: FBT003
    "show what would be done, and do nothing", in_file=False)
VERBOSE: Setting[bool] = Setting(
    "verbose", "--verbose", "", Kind.SWITCH, "", values.parse_switch, False,  # noqa: FBT003
    "say on stderr what is done", in_file=False)
DEBUG: Setting[bool] = Setting(
    "debug", "--debug", "", Kind.SWITCH, "", values.parse_switch, False,  # noqa: FBT003
    "say more, and show where an error came from", in_file=False)
# fmt: on

SETTINGS: tuple[Setting[object], ...] = (
    IMAGE, IMAGE_BASE, IMAGE_TARGET, IMAGE_PACKAGES, IMAGE_RUN, IMAGE_CONTAINERFILE,
    IMAGE_SUITE, IMAGE_MIRRORS, IMAGE_APT_OPTIONS,
    SESSION, PROJECT, RM, RUNTIME, USER, NETWORK,
    MOUNT, HIDE, ENV, PASS_ENV, SECRET, SECRET_FILES,
    MEMORY, CPUS, PIDS, SHM_SIZE, DEVICE, PUBLISH, HOST_PORT, PODMAN_ARG,
    SHARE, CACHE, SESSION_ENV, IDLE_STOP, KEEP_FOR,
    LOGIN, LOGIN_CLAUDE, LOGIN_TOKEN_COMMAND, LOGIN_AGENTS, AGENTS,
)  # fmt: skip
ACTIONS: tuple[Setting[object], ...] = (DRY_RUN, VERBOSE, DEBUG)
FLAGS: tuple[Setting[object], ...] = tuple(row for row in (*SETTINGS, *ACTIONS) if row.flag)


class Values(NamedTuple):
    """What one level (file, table, environment, flags) gives, asked for by row."""

    given: Mapping[str, object] = MappingProxyType({})

    def get(self, row: Setting[T]) -> T | None:
        """The value, or None when this level does not give it."""
        return cast("T | None", self.given.get(row.key))


def collect(pairs: Iterable[tuple[Setting[object], object]]) -> Values:
    """One level's values: of a single value the last holds, items of lists and tables add up."""
    given: dict[str, object] = {}
    for row, value in pairs:
        earlier = given.get(row.key)
        if isinstance(earlier, tuple) and isinstance(value, tuple):
            given[row.key] = earlier + value
        else:
            given[row.key] = value
    return Values(given)


class FlagValues(NamedTuple):
    """What stood before `--`. `project` is as given ("" if not): relative to the caller's cwd."""

    values: Values = Values()
    project: str = ""
    dry_run: bool = False
    verbose: bool = False
    debug: bool = False


def parse_wrap_flags(argv: Sequence[str]) -> FlagValues:
    """Parse the words before `--` (which is not among them).

    Raises UsageError for an unknown flag, a missing or wrong value, and a word that is no flag;
    UnsupportedError for a value that is refused with its reason.
    """
    rows = {row.flag: row for row in FLAGS}
    pairs: list[tuple[Setting[object], object]] = []
    words = iter(argv)
    for word in words:
        name, sign, attached = word.partition("=")
        row = rows.get(name)
        if row is None:
            raise _unknown_word(word, name, tuple(rows))
        text = attached if sign else _next_text(row, words)
        pairs.append((row, _parse_flag(row, text)))
    given = collect(pairs)
    return FlagValues(
        values=given,
        project=given.get(PROJECT) or "",
        dry_run=given.get(DRY_RUN) or False,
        verbose=given.get(VERBOSE) or False,
        debug=given.get(DEBUG) or False,
    )


def _next_text(row: Setting[object], words: Iterable[str]) -> str:
    """The value of a flag without `=`: none for a switch, else the next word."""
    if row.kind is Kind.SWITCH:
        return "true"
    text = next(iter(words), None)
    if text is None or (text.startswith("--") and row is not PODMAN_ARG):
        raise UsageError(f"{row.flag} needs a value.", f"{row.flag} {row.metavar}")
    return text


def _parse_flag(row: Setting[object], text: str) -> object:
    try:
        return row.parse(text)
    except BadValueError as error:
        found = "" if row.is_sensitive else f" {shown(text)}"
        raise UsageError(f"{row.flag}{found}: {error}.", HELP_HINT) from None


def _unknown_word(word: str, name: str, known: tuple[str, ...]) -> UsageError:
    if not word.startswith("-"):
        return UsageError(
            f"{shown(word)} stands before --, where only cagewrap's own flags do.",
            "put the command after --: cagewrap [FLAGS] -- COMMAND …",
        )
    return UsageError(f"Unknown flag {shown(name)}{values.nearest(name, known)}.", HELP_HINT)


def shown(text: str) -> str:
    """A text in quotes, cut where it would flood the terminal."""
    return repr(text if len(text) <= 80 else text[:79] + "…")


def wrap_help() -> str:
    """The help of the wrap path: every flag of the table, with its default's effect."""
    import textwrap

    lines = [
        "Usage: cagewrap [FLAGS] -- COMMAND [ARG…]",
        "",
        "Run COMMAND in a container of its own that is kept for the next time.",
        "",
        "Flags:",
    ]
    for row in FLAGS:
        head = f"  {row.flag} {row.metavar}".rstrip()
        more = " (repeatable)" if row.kind in (Kind.LIST, Kind.TABLE) else ""
        body = textwrap.wrap(row.help + more, 72)
        if len(head) < 27:
            lines.append(f"{head:<27}{body[0]}")
        else:
            lines.extend((head, " " * 27 + body[0]))
        lines.extend(" " * 27 + line for line in body[1:])
    return "\n".join(lines) + "\n"
