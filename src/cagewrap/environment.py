"""What of the owner's environment reaches the agent: an allow-list, and what cagewrap adds.

Everything works on bytes, because a variable need not be UTF-8. The functions are pure; the two
that read a file (`read_secret_file`, `read_localtime_link`) are passed in by whoever calls.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cagewrap.errors import ConfigInvalidError, UnsupportedError
from cagewrap.model import EnvPolicy, Identity

_TERMINAL = (
    "TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "LC_TERMINAL*", "COLORFGBG",
    "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "VTE_VERSION",
)  # fmt: skip
_LOCALE = ("LANG", "LANGUAGE", "LC_*", "TZ")
_AGENT = (
    "CLAUDECODE", "CLAUDE_*", "ANTHROPIC_*", "CODEX_*", "OPENAI_*", "GEMINI_*", "OPENCODE_*",
    "PI_*", "MCP_*", "TRACEPARENT", "TRACESTATE",
    # Claude Code's settings that carry no prefix of its own.
    "API_TIMEOUT_MS", "BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "BASH_MAX_OUTPUT_LENGTH",
    "DISABLE_AUTOUPDATER", "DISABLE_AUTO_COMPACT", "DISABLE_BUG_COMMAND", "DISABLE_COMPACT",
    "DISABLE_COST_WARNINGS", "DISABLE_ERROR_REPORTING", "DISABLE_FEEDBACK_COMMAND",
    "DISABLE_INTERLEAVED_THINKING", "DISABLE_NON_ESSENTIAL_MODEL_CALLS",
    "DISABLE_PROMPT_CACHING*", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "ENABLE_TOOL_SEARCH",
    "MAX_MCP_OUTPUT_TOKENS", "MAX_STRUCTURED_OUTPUT_RETRIES", "MAX_THINKING_TOKENS",
    "SLASH_COMMAND_TOOL_CHAR_BUDGET", "TASK_MAX_OUTPUT_LENGTH", "USE_BUILTIN_RIPGREP",
    "VERTEX_REGION_*",
)  # fmt: skip
_NOT_INSIDE = (
    # Paths and sockets of the host: inside they name nothing, or a file that would be lost.
    "!CLAUDE_*_DIR", "!ANTHROPIC_*_DIR", "!OPENCODE_*_DIR", "!GEMINI_*_DIR", "!PI_*_DIR",
    "!CODEX_HOME", "!GEMINI_CLI_HOME", "!CODEX_SQLITE_HOME", "!OPENCODE_CONFIG",
    "!CLAUDE_CODE_TMPDIR", "!CLAUDE_TMPDIR", "!CLAUDE_*_FILE", "!ANTHROPIC_*_FILE",
    "!CLAUDE_*_SOCKET", "!ANTHROPIC_*_SOCKET", "!CODEX_*_SOCKET", "!GEMINI_*_SOCKET",
    "!OPENCODE_*_SOCKET", "!MCP_*_SOCKET", "!PI_*_SOCKET",
    "!CLAUDE_*_SOCK", "!ANTHROPIC_*_SOCK", "!CODEX_*_SOCK", "!GEMINI_*_SOCK",
    "!OPENCODE_*_SOCK", "!MCP_*_SOCK", "!PI_*_SOCK",
    "CLAUDE_PROJECT_DIR",
    # A port on the host's loopback, where an editor listens.
    "!CLAUDE_CODE_SSE_PORT",
    # The long-lived half of a login: what holds it can log in again for ever.
    "!CLAUDE_CODE_OAUTH_REFRESH_TOKEN",
    # Says "already in a sandbox"; only cagewrap knows whether that is so.
    "!CLAUDE_CODE_BUBBLEWRAP",
)  # fmt: skip
DEFAULT_PASSED: tuple[str, ...] = (*_TERMINAL, *_LOCALE, *_AGENT, *_NOT_INSIDE)
"""Names and patterns, the last that matches decides; `!` in front means: does not pass."""

DEFAULT_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UTF8_LOCALE = b"C.UTF-8"
MAX_SECRET_BYTES = 65536
LOCALTIME_FILE = "/etc/localtime"

_EVERYWHERE = frozenset((b"", b"C", b"POSIX", b"C.UTF-8", b"C.utf8"))
_LOCALE_NAMES = frozenset(
    (
        b"LANG", b"LC_ALL", b"LC_ADDRESS", b"LC_COLLATE", b"LC_CTYPE", b"LC_IDENTIFICATION",
        b"LC_MEASUREMENT", b"LC_MESSAGES", b"LC_MONETARY", b"LC_NAME", b"LC_NUMERIC", b"LC_PAPER",
        b"LC_TELEPHONE", b"LC_TIME",
    )
)  # fmt: skip
_DESCRIPTOR_SUFFIX = b"_FILE_DESCRIPTOR"
_SECRET_ENDINGS = (
    "TOKEN", "TOKENS", "KEY", "KEYS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE",
    "PASS", "CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH", "AUTHORIZATION", "BEARER", "COOKIE",
    "COOKIES", "HEADER", "HEADERS", "JWT", "PAT", "DSN", "PROXY", "CONTENT", "BODY",
)  # fmt: skip
_COUNTING_WORDS = frozenset(("MAX", "MIN", "LIMIT", "BUDGET", "COUNT"))


def is_secret_name(name: str | bytes) -> bool:
    """Whether a variable of this name may hold a secret. Rather too often than too seldom.

    A word of the name ends like `TOKEN` or `KEY` (`ANTHROPIC_API_KEY`, `npm_authtoken`), unless it
    counts tokens (`MAX_THINKING_TOKENS`).
    """
    text = os.fsdecode(name).upper()
    words = text.replace("-", "_").replace(".", "_").split("_")
    if text.endswith("TOKENS") and not _COUNTING_WORDS.isdisjoint(words):
        return False
    return any(word.endswith(_SECRET_ENDINGS) for word in words)


def find_secret_names(policy: EnvPolicy, names: Iterable[bytes]) -> frozenset[bytes]:
    """Those of `names` whose values must not be shown: declared secret, or named like one."""
    declared = (*policy.secret_names, *(name for name, _ in policy.secret_files))
    hidden = frozenset(os.fsencode(name) for name in declared)
    return frozenset(name for name in names if name in hidden or is_secret_name(name))


class PassRules(NamedTuple):
    """Names and patterns of an EnvPolicy, made ready; of all that match, the last decides."""

    exact: Mapping[bytes, int]
    patterns: tuple[tuple[int, bytes, bytes], ...]
    passes_at: frozenset[int]

    def passes(self, name: bytes) -> bool:
        """Whether the variable of this name passes."""
        best = self.exact.get(name, -1)
        for place, start, end in self.patterns:
            if place < best:
                break
            if len(name) >= len(start) + len(end) and name.startswith(start) and name.endswith(end):
                best = place
                break
        return best in self.passes_at


def build_pass_rules(passed: Iterable[str]) -> PassRules:
    """Make `EnvPolicy.passed` ready for many names."""
    exact: dict[bytes, int] = {}
    patterns: list[tuple[int, bytes, bytes]] = []
    passes_at: set[int] = set()
    for place, rule in enumerate(passed):
        start, star, end = os.fsencode(rule.removeprefix("!")).partition(b"*")
        if star:
            patterns.append((place, start, end))
        else:
            exact[start] = place
        if not rule.startswith("!"):
            passes_at.add(place)
    return PassRules(exact, tuple(reversed(patterns)), frozenset(passes_at))


def read_secret_file(path: str) -> bytes:
    """The secret in a file: its content without one trailing newline.

    Raises ConfigInvalidError, naming the path and never the content.
    """
    content, is_file = b"", False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            is_file = stat.S_ISREG(os.fstat(fd).st_mode)
            if is_file:
                with open(fd, "rb", closefd=False) as file:
                    content = file.read(MAX_SECRET_BYTES + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigInvalidError(
            f"The secret file {path} cannot be read: {error.strerror}.", f"ls -l {path}"
        ) from None
    value = content.removesuffix(b"\n")
    if not is_file or not value or len(content) > MAX_SECRET_BYTES or b"\0" in value:
        raise ConfigInvalidError(
            f"The secret file {path} must be a file of 1 to {MAX_SECRET_BYTES} bytes without NUL.",
            f"write the secret into {path}",
        )
    return value


def read_localtime_link() -> bytes:
    """Where the host's /etc/localtime points to; b"" when it is no link."""
    try:
        return os.fsencode(os.readlink(LOCALTIME_FILE))
    except OSError:
        return b""


def agent_environment(  # noqa: PLR0913 - each is a fact of its own, by name
    policy: EnvPolicy,
    caller: Mapping[bytes, bytes],
    image: Mapping[bytes, bytes],
    *,
    home: bytes,
    user: bytes,
    shell: bytes,
    identity: Identity,
    cwd: bytes = b"",
    localtime: bytes = b"",
    read_secret: Callable[[str], bytes] = read_secret_file,
) -> dict[bytes, bytes]:
    """The whole environment of the agent's process.

    image < what passes of the caller's < locale, time zone, HOME, USER, LOGNAME, SHELL, PWD and
    (as root) IS_SANDBOX < what the policy sets < its secrets.

    image: the container's own environment. shell, cwd: left out when empty. localtime: the target
    of the host's /etc/localtime, for a caller without TZ. Raises UnsupportedError for a variable
    that names a file descriptor, ConfigInvalidError for a secret file that cannot be used.
    """
    rules = build_pass_rules(policy.passed)
    passed = {name: value for name, value in caller.items() if rules.passes(name)}
    fixed = {os.fsencode(name): os.fsencode(value) for name, value in policy.fixed}
    _refuse_descriptors({**passed, **fixed})
    result = {b"PATH": DEFAULT_PATH, **image}
    result[b"PATH"] = result[b"PATH"] or DEFAULT_PATH  # an image can say `ENV PATH=`
    result.update((name, value) for name, value in passed.items() if name not in _LOCALE_NAMES)
    result.update(_locale(passed, image))
    result.pop(b"TZ", None)
    result.update(_time_zone(passed, image, localtime if rules.passes(b"TZ") else b""))
    result.update({b"HOME": home, b"USER": user, b"LOGNAME": user})
    result.update({name: value for name, value in ((b"SHELL", shell), (b"PWD", cwd)) if value})
    if identity is Identity.ROOT:
        result[b"IS_SANDBOX"] = b"1"
    result.update(fixed)
    for name in policy.secret_names:
        value = caller.get(os.fsencode(name))
        if value is not None:
            result[os.fsencode(name)] = value
    for name, path in policy.secret_files:
        result[os.fsencode(name)] = read_secret(path)
    return result


def _refuse_descriptors(found: Mapping[bytes, bytes]) -> None:
    for name, value in found.items():
        if value and name.endswith(_DESCRIPTOR_SUFFIX):
            shown = os.fsdecode(name)
            raise UnsupportedError(
                f"{shown} names an open file descriptor, and only descriptors 0, 1 and 2 reach "
                "the agent in a cage.",
                f'give the value in a file (--secret NAME=FILE), or drop it: --env "!{shown}"',
            )


def _locale(passed: Mapping[bytes, bytes], image: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Locale variables with which programs inside read and write UTF-8.

    A locale the image lacks makes setlocale fail, and programs fall back to ASCII; all an image
    surely has is C.UTF-8. So a value of the caller's is kept only if every image has it, or the
    image's own environment names it.
    """
    known = _EVERYWHERE.union(image[name] for name in _LOCALE_NAMES if name in image)
    wanted = {name: image[name] for name in _LOCALE_NAMES if name in image}
    wanted.update(
        (name, value) for name, value in passed.items() if name in _LOCALE_NAMES and value in known
    )
    if not _is_utf8(wanted.get(b"LANG", b"")):
        wanted[b"LANG"] = UTF8_LOCALE
    for name in (b"LC_ALL", b"LC_CTYPE"):
        value = wanted.get(name, b"")
        if value and not _is_utf8(value):
            wanted[name] = UTF8_LOCALE
    return wanted


def _is_utf8(locale: bytes) -> bool:
    codeset = locale.partition(b".")[2].partition(b"@")[0]
    return codeset.replace(b"-", b"").lower() == b"utf8"


def _time_zone(
    passed: Mapping[bytes, bytes], image: Mapping[bytes, bytes], localtime: bytes
) -> dict[bytes, bytes]:
    """TZ as a name: the caller's, else the image's, else the host's own zone.

    A path of the host's zone database becomes the name it ends in, since the file may lie
    elsewhere inside, or nowhere (then libc falls back to UTC).
    """
    value = passed.get(b"TZ")
    if value is not None and not value.lstrip(b":").startswith(b"/"):
        return {b"TZ": value}
    name = zone_name(value.lstrip(b":")) if value else b""
    if name:
        return {b"TZ": name}
    if b"TZ" in image and value is None:
        return {b"TZ": image[b"TZ"]}
    name = zone_name(localtime)
    return {b"TZ": name} if name else {}


def zone_name(path: bytes) -> bytes:
    """`Europe/Berlin` of `…/zoneinfo/Europe/Berlin`; b"" for any other path."""
    name = path.partition(b"/zoneinfo/")[2]
    for variant in (b"posix/", b"right/"):
        name = name.removeprefix(variant)
    return name
