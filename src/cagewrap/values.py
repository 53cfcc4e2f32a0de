"""How the text of one setting becomes a value: sizes, durations, ports, paths, names.

Flags, environment variables and the configuration file share these parsers, so a value is
written the same way in all three. A parser raises BadValueError with the *reason* only; whoever
calls knows where the text stood, and whether it may be shown.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from cagewrap.errors import UnsupportedError
from cagewrap.model import Identity, LoginMode, NetworkMode, PortForward

NEVER = float("inf")
MAX_SESSION_BYTES = 200
MIN_MEMORY_BYTES = 6 * 1024 * 1024
RESERVED_NAMES = frozenset(("HOME", "USER", "LOGNAME", "PWD"))
RUNTIMES = ("crun", "runc")
SHARES = ("git-identity", "claude", "ssh-agent", "gh", "gitconfig", "nix")
SUITES = ("bookworm", "trixie")
TARGETS = ("workbench", "desktop")
CACHES = ("apt", "cargo", "npm", "pip", "uv")

_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE_UNITS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_KRUN_REASON = (
    "krun runs the container in a small virtual machine, and starting a program in a running "
    "container does not enter that machine: a kept cage would run the agent on the host's kernel."
)


class BadValueError(Exception):
    """A text that is not a value of its setting; `str()` says what is allowed instead."""


class EnvEntry(NamedTuple):
    """One wish about the agent's environment.

    kind: `pass` a name or pattern (`!` before it: do not), `set` a value, `secret` from the
    caller's environment, `secret_file` from the file named by `value`.
    """

    kind: Literal["pass", "set", "secret", "secret_file"]
    name: str
    value: str = ""


def nearest(text: str, known: tuple[str, ...]) -> str:
    """` (did you mean X?)` when one of `known` is close to `text`, else ""."""
    import difflib

    close = difflib.get_close_matches(text, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def parse_text(text: str) -> str:
    """Any text that is not empty and has no control character."""
    if not text or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise BadValueError("must be a text without control characters, and not empty")
    return text


def parse_word(text: str) -> str:
    """One argv word: anything but the empty one."""
    if not text:
        raise BadValueError("must not be empty")
    return text


def parse_choice(text: str, known: tuple[str, ...]) -> str:
    """One of `known`."""
    if text not in known:
        raise BadValueError(f"must be one of {', '.join(known)}{nearest(text, known)}")
    return text


def parse_runtime(text: str) -> str:
    """An OCI runtime. Raises UnsupportedError for krun, with the reason."""
    if text == "krun":
        raise UnsupportedError(
            f"The runtime krun is not supported yet: {_KRUN_REASON}",
            "take the runtime crun or runc",
        )
    return parse_choice(text, RUNTIMES)


def parse_target(text: str) -> str:
    """A stage of the shipped Containerfile."""
    return parse_choice(text, TARGETS)


def parse_suite(text: str) -> str:
    """A release of Debian that the shipped Containerfile is tried with."""
    return parse_choice(text, SUITES)


def parse_cache(text: str) -> str:
    """A program whose downloads cages share."""
    return parse_choice(text, CACHES)


def parse_package(text: str) -> str:
    """A Debian package as apt-get takes it: `jq`, `libfoo:i386`, `gcc/bookworm`, `git=1:2.39`."""
    head = text[:1]
    if not (head.isascii() and head.isalnum()) or not all(
        char.isascii() and (char.isalnum() or char in "+-.:/=~_") for char in text
    ):
        raise BadValueError("must be the name of a Debian package")
    return text


def parse_base(text: str) -> str:
    """`auto`, `packages`, or the name of an image."""
    if not text or text.startswith("-") or any(char.isspace() for char in text):
        raise BadValueError("must be auto, packages, or the name of an image")
    return parse_text(text)


def parse_identity(text: str) -> Identity:
    """`root` or `owner`."""
    return Identity(parse_choice(text, tuple(one.value for one in Identity)))


def parse_network(text: str) -> NetworkMode:
    """`open` or `none`."""
    return NetworkMode(parse_choice(text, tuple(one.value for one in NetworkMode)))


def parse_login_mode(text: str) -> LoginMode:
    """`auto`, `access`, `broker`, `token`, `directory` or `none`."""
    return LoginMode(parse_choice(text, tuple(one.value for one in LoginMode)))


def parse_switch(text: str) -> bool:
    """`true` or `1`, `false` or `0`."""
    known = {"true": True, "1": True, "false": False, "0": False}
    if text not in known:
        raise BadValueError("must be true or false")
    return known[text]


def parse_session(text: str) -> str:
    """A session's name: text of at most 200 bytes that one line of a terminal can show."""
    if not text.strip():
        raise BadValueError("must not be empty")
    if any(_breaks_a_line(ord(char)) for char in text):
        raise BadValueError("must be printable text: no control characters, no broken UTF-8")
    if len(text.encode()) > MAX_SESSION_BYTES:
        raise BadValueError(f"must be at most {MAX_SESSION_BYTES} bytes in UTF-8")
    return text


def _breaks_a_line(code: int) -> bool:
    """C0 and C1 controls, line separators, direction overrides, half characters."""
    return (
        code < 0x20
        or 0x7F <= code <= 0x9F
        or 0x2028 <= code <= 0x202E
        or 0x2066 <= code <= 0x2069
        or 0xD800 <= code <= 0xDFFF
        or code in (0xFEFF, 0xFFFE, 0xFFFF)
    )


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `30m`, `2h`, `30d`; `never` is infinity."""
    if text == "never":
        return NEVER
    number, unit = text[:-1], text[-1:]
    if not _is_digits(number) or unit not in _DURATION_UNITS:
        raise BadValueError("must be a whole number with its unit (90s, 30m, 2h, 30d) or never")
    return float(int(number) * _DURATION_UNITS[unit])


def parse_size(text: str) -> int:
    """Bytes of `512m`, `4g`, `1.5GiB`, `65536`; units are powers of 1024, as podman reads them."""
    lower = text.lower()
    number = lower.rstrip("bkmgti")
    unit = lower[len(number) :].removesuffix("ib") or lower[len(number) :]
    unit = unit.removesuffix("b") or unit
    whole, _, fraction = number.partition(".")
    if not _is_digits(whole + fraction) or not whole or unit not in _SIZE_UNITS:
        raise BadValueError("must be a size such as 512m, 4g or a number of bytes")
    size = int(float(number) * 1024 ** _SIZE_UNITS[unit])
    if not 0 < size < 2**63:
        raise BadValueError("must be more than nothing and less than 8 EiB")
    return size


def parse_memory(text: str) -> int:
    """A size of at least 6 MiB: below that no container starts."""
    size = parse_size(text)
    if size < MIN_MEMORY_BYTES:
        raise BadValueError(f"is {size} bytes, and must be at least 6m")
    return size


def parse_cpus(text: str) -> float:
    """A number of CPUs, such as 2 or 0.5."""
    whole, _, fraction = text.partition(".")
    if not _is_digits(whole + fraction) or len(text) > 9 or float(text) <= 0:
        raise BadValueError("must be a number of CPUs such as 2 or 0.5")
    return float(text)


def parse_pids(text: str) -> int:
    """How many processes and threads; -1 is no limit, as in podman."""
    if text == "-1":
        return -1
    if not _is_digits(text) or not 0 < int(text) < 2**22 + 1:
        raise BadValueError("must be a whole number from 1 to 4194304, or -1 for no limit")
    return int(text)


def parse_ports(text: str) -> PortForward:
    """`PORT` or `LISTEN:CONNECT`; both ends are loopback, so no address is taken."""
    parts = text.split(":")
    if len(parts) > 2:
        raise BadValueError("takes no address: ports are bound on loopback only (PORT or A:B)")
    if not all(_is_digits(part) and 0 < int(part) < 65536 for part in parts):
        raise BadValueError("must be PORT or A:B, each a TCP port from 1 to 65535")
    return PortForward(listen=int(parts[0]), connect=int(parts[-1]))


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def parse_path(text: str) -> str:
    """An absolute path, or one that starts with `~/`; `..` is refused. Returned normalised."""
    if "\0" in text:
        raise BadValueError("must not contain a NUL")
    if text != "~" and not text.startswith(("/", "~/")):
        raise BadValueError("must be an absolute path or start with ~/")
    if ".." in text.split("/"):
        raise BadValueError("must not contain ..")
    return "/" + os.path.normpath(text).lstrip("/") if text[0] == "/" else os.path.normpath(text)


def parse_hidden(text: str) -> str:
    """A path or pattern to hide, relative to the project or absolute. A final `/` is kept: it
    means directories alone."""
    if text.startswith(("/", "~")):
        path = parse_path(text)
    elif "\0" in text or ".." in text.split("/") or os.path.normpath(text) == ".":
        raise BadValueError("must be a path inside the project, without ..")
    else:
        path = os.path.normpath(text)
    return path + "/" if text.endswith("/") and path != "/" else path


def expand_home(path: str, home: str) -> str:
    """`~` at the front becomes `home`."""
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def parse_device(text: str) -> str:
    """A device as podman's --device takes it: `/dev/X[:/dev/Y][:rwm]`, or a CDI name."""
    parts = text.split(":")
    if not text.startswith("/"):
        if "/" in text and "=" in text and len(parts) == 1:
            return text
        raise BadValueError(
            "must be /dev/NAME[:TARGET][:rwm] or a CDI name such as VENDOR/CLASS=ID"
        )
    access = parts[-1] if len(parts) > 1 and not parts[-1].startswith("/") else "rwm"
    if len(parts) > 3 or not access or set(access) - set("rwm") or ".." in text.split("/"):
        raise BadValueError("must be /dev/NAME[:TARGET][:rwm]")
    return text


def parse_env(text: str) -> EnvEntry:
    """`NAME=VALUE` sets; `NAME`, `PREFIX_*` pass what the caller has; `!NAME` does not pass it."""
    name, sign, value = text.partition("=")
    if not sign:
        return parse_pass(text)
    if "\0" in value:
        raise BadValueError(f"gives {name} a value with a NUL in it")
    return EnvEntry("set", parse_name(name), value)


def parse_pass(text: str) -> EnvEntry:
    """A name, or a pattern with one `*`, of variables to pass; `!` in front: not to pass."""
    pattern = text.removeprefix("!")
    if pattern.count("*") > 1 or pattern == "*":
        raise BadValueError("must be a name or a pattern with one * (LC_*), not everything")
    if pattern != text:
        _check_name(pattern)
    else:
        parse_name(pattern)
    return EnvEntry("pass", text)


def parse_secret(text: str) -> EnvEntry:
    """`NAME`: from the caller's environment. `NAME=PATH`: the content of that file."""
    name, sign, path = text.partition("=")
    parse_name(name)
    if not sign:
        return EnvEntry("secret", name)
    try:
        return EnvEntry("secret_file", name, parse_path(path))
    except BadValueError:
        # The text after "=" may be the secret itself: it is not repeated.
        raise BadValueError(
            f"must be NAME or NAME=FILE, and for {name} what follows = is not an absolute path "
            "(a secret itself never stands on a command line)"
        ) from None


def parse_name(text: str) -> str:
    """The name of an environment variable that cagewrap does not set itself."""
    _check_name(text)
    if text in RESERVED_NAMES:
        raise BadValueError(f"names {text}, which cagewrap sets itself")
    return text


def _check_name(text: str) -> None:
    if not text or any(ord(char) <= 32 or ord(char) == 127 or char in "=!" for char in text):
        raise BadValueError("names no variable: a name has no spaces, no = and is not empty")


def parse_share(text: str) -> tuple[str, bool]:
    """`gh` is `("gh", True)`; `no-git-identity` is `("git_identity", False)`."""
    name = text.removeprefix("no-")
    if name not in SHARES:
        parse_choice(text, (*SHARES, "no-git-identity", "no-claude"))
    return name.replace("-", "_"), name == text


def item_text(found: object) -> str:
    """A TOML text as it is."""
    if not isinstance(found, str):
        raise BadValueError("must be a text in quotes")
    return found


def number_text(found: object) -> str:
    """A TOML text or number, as text."""
    if type(found) in (int, float):
        return str(found)
    if not isinstance(found, str):
        raise BadValueError("must be a number, or a text in quotes")
    return found


def switch_text(found: object) -> str:
    """A TOML boolean, as text."""
    if not isinstance(found, bool):
        raise BadValueError("must be true or false, without quotes")
    return "true" if found else "false"


def pair_text(name: str, found: object) -> str:
    """`NAME=VALUE` of one line in a table such as [env]."""
    parse_name(name)
    if not isinstance(found, str):
        raise BadValueError(f"needs a text in quotes for {name}")
    return f"{name}={found}"


def share_text(name: str, found: object) -> str:
    """One line of [share] as --share writes it."""
    known = tuple(one.replace("-", "_") for one in SHARES)
    if name not in known:
        raise BadValueError(f"has the key {name!r}{nearest(name, known)}")
    if not isinstance(found, bool):
        raise BadValueError(f"needs true or false for {name}, without quotes")
    return ("" if found else "no-") + name.replace("_", "-")
