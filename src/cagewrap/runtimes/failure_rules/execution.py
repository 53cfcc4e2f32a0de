"""Why an OCI runtime did not start a process in a running container."""

from __future__ import annotations

from cagewrap.errors import (
    AgentNotExecutableError,
    AgentNotFoundError,
    SessionError,
)
from cagewrap.runtimes.failure_rules.rule import Rule

EXEC = (
    Rule(
        r"chdir (?:to )?(?:cwd )?\(?\\*[`\"](?P<dir>[^`\"\\]+)\\*[`\"]\)?.*?: (?:[Nn]o such file)",
        AgentNotFoundError,
        "The working directory {dir} is not in the cage.",
        "run in the session's project, or add --mount {dir}",
    ),
    Rule(
        r"chdir (?:to )?(?:cwd )?\(?\\*[`\"](?P<dir>[^`\"\\]+)\\*[`\"]\)?.*?: (?P<why>[^\n\"]+)",
        AgentNotFoundError,
        "The working directory {dir} cannot be entered in the cage: {why}.",
        "cd to a directory of the project",
    ),
    Rule(
        r"status`: No such file|container `[^`]*` does not exist|container does not exist|"
        r"is not running|container state improper",
        SessionError,
        "The session's container is not running; it was stopped from outside.",
        "send the message again: it is started",
    ),
    Rule(
        r"executable file .*not found|cannot find `[^`]*` in \$PATH|"
        r'exec: \\*"[^"]*": stat .*no such file',
        AgentNotFoundError,
        "{program} is not in the cage: it is neither in the image nor in what is mounted.",
        "install it in the cage with `cagewrap shell`, or choose an image that has it with --image",
    ),
    Rule(
        r"not a regular file|[Ii]s a directory|open executable: Operation not permitted",
        AgentNotExecutableError,
        "{program} in the cage is a directory or another thing that is not a program.",
        "name a program after --",
    ),
    Rule(
        r"(?i)exec format error",
        AgentNotExecutableError,
        "{program} in the cage is not a program for this machine: made for another processor, or a "
        "script without a #! line.",
        "install the build for $(uname -m) in the cage, with `cagewrap shell`",
    ),
    Rule(
        r"(?i)exec(?: container process)?:? ?(?:[`/][^`\n]*`?)?: no such file",
        AgentNotExecutableError,
        "{program} is in the cage, but what it runs by is not: the interpreter of its #! line, or "
        "the loader of its C library (a glibc program in an image with musl).",
        "use an image of the kind the program was built for, with --image",
    ),
    Rule(
        r"(?i)not executable|permission denied|operation not permitted",
        AgentNotExecutableError,
        "{program} in the cage may not be executed by the agent's user.",
        "chmod +x that file",
    ),
)
