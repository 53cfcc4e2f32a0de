"""Turns what podman and the OCI runtimes say when they fail into an error a person can act on.

Only called after a failure: a start that works pays nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cagewrap.errors import AgentNotExecutableError, CagewrapError
from cagewrap.model import DEFAULT_IMAGE
from cagewrap.runtimes.failure_rules import EXEC_RULES, RULES, WARNING_RULES
from cagewrap.runtimes.failure_rules.rule import Rule
from cagewrap.runtimes.subids import read_free_range

_LAST_LINES = 4
_LINE_LENGTH = 300
_TIMED_OUT = 124
_VERBS = frozenset(
    ("run", "create", "start", "stop", "rm", "exec", "inspect", "ps", "info", "import", "images")
)


def explain_failure(
    argv: Sequence[str], returncode: int, stderr: str, *, image: str = ""
) -> CagewrapError:
    """The error for a podman command that failed.

    Known texts give their own class, sentence and fix; any other gives the command and podman's
    last lines. `image` is the image the command was about.
    """
    found = _first_match(RULES, stderr, {"image": image or "of this session"})
    if found is not None:
        return found
    command = shorten(argv)
    if returncode == _TIMED_OUT:
        return CagewrapError(
            f"`{command}` did not answer in time; another podman may hold its storage.",
            "cagewrap doctor",
        )
    fate = f"was killed by signal {-returncode}" if returncode < 0 else f"failed ({returncode})"
    said = last_lines(stderr) or "it said nothing"
    return CagewrapError(f"`{command}` {fate}: {said}", "cagewrap doctor")


def explain_warning(stderr: str) -> CagewrapError | None:
    """The error for what a podman that ended well only warned of, None when all is well.

    Without subordinate ids podman runs a container with a single user and says so on stderr.
    """
    return _first_match(WARNING_RULES, stderr, {})


def explain_exec_failure(text: str, program: str) -> CagewrapError:
    """The error for an OCI runtime that did not start `program` in a running container."""
    found = _first_match(EXEC_RULES, text, {"program": program or "the empty name"})
    if found is not None:
        return found
    return AgentNotExecutableError(
        f"{program} could not be started in the cage: {last_lines(text) or 'no reason given'}",
        "cagewrap doctor",
    )


def explain_never_executed(program: str) -> CagewrapError:
    """The error for a process that `never_executed`; the runtime's own line is on its stderr."""
    return AgentNotExecutableError(
        f"{program} is in the cage but cannot run there: it is made for another processor, or its "
        "interpreter (the #! line, or the loader of its C library) is not in the image.",
        "use an image of the kind the program was built for, with --image",
    )


def shorten(argv: Sequence[str]) -> str:
    """The command without its options: `podman run`."""
    verb = next((word for word in argv[1:] if word in _VERBS), "")
    program = argv[0] if argv else "podman"
    return f"{program} {verb}".rstrip()


def last_lines(text: str) -> str:
    """The last lines that say something, as one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(line[:_LINE_LENGTH] for line in lines[-_LAST_LINES:])


def read_userns_fix() -> str:
    """The command that lets an ordinary user make user namespaces, by what this machine forbids."""
    for name, value, wanted in (
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user.max_user_namespaces", "0", "15000"),
    ):
        if read_sysctl(name) == value:
            return (
                f"echo {name}={wanted} | sudo tee /etc/sysctl.d/60-cagewrap.conf && "
                "sudo sysctl --system"
            )
    return "start cagewrap outside of the chroot, container or sandbox that forbids it"


def read_sysctl(name: str, root: str = "/proc/sys") -> str:
    """A kernel setting, "" where the kernel does not have it."""
    try:
        with open(f"{root}/{name.replace('.', '/')}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def image_fix(image: str) -> str:
    """The command that gets an image onto this machine."""
    if image == DEFAULT_IMAGE or "/" not in image:
        return "cagewrap image build"
    if image.startswith("localhost/"):
        return f"cagewrap image build --name {image}"
    return f"podman pull {image}"


FILLERS: dict[str, Callable[[dict[str, str]], str]] = {
    "subids": lambda _: read_free_range(),
    "userns_fix": lambda _: read_userns_fix(),
    "image_fix": lambda values: image_fix(values.get("image", "")),
}
"""Values worked out only when a matching rule asks for them."""


def _first_match(rules: Sequence[Rule], text: str, values: dict[str, str]) -> CagewrapError | None:
    text = text.replace('\\"', '"')  # podman's log lines quote what they carry
    for rule in rules:
        match = re.search(rule.pattern, text)
        if match is None:
            continue
        found = values | {name: value or "" for name, value in match.groupdict().items()}
        for name, fill in FILLERS.items():
            if f"{{{name}}}" in rule.hint:
                found[name] = fill(found)
        message = rule.message.format_map(found).replace(" ()", "")
        return rule.error(message, rule.hint.format_map(found))
    return None
