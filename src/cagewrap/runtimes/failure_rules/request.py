"""What was asked for and is not there: image, mounts, programs, containers."""

from __future__ import annotations

from cagewrap.errors import (
    ConfigInvalidError,
    ImageMissingError,
    MountRefusedError,
    PodmanMissingError,
    SessionError,
)
from cagewrap.runtimes.failure_rules.rule import Rule

IMAGE = (
    Rule(
        r"image not known|no such image|short-name |pinging container registry|manifest unknown|"
        r"initializing source|Trying to pull|access to the resource is denied",
        ImageMissingError,
        "The image {image} is not on this machine.",
        "{image_fix}",
    ),
    Rule(
        r"invalid reference format",
        ConfigInvalidError,
        "{image!r} cannot be the name of an image.",
        "use a name such as localhost/cagewrap:latest",
    ),
)

MOUNT = (
    Rule(
        r"stat (?P<path>/dev/[^\n]+): no such file or directory",
        MountRefusedError,
        "The device {path} does not exist on this machine.",
        "ls /dev, then correct --device",
    ),
    Rule(
        r"statfs (?P<path>[^\n]+): no such file or directory",
        MountRefusedError,
        "{path} does not exist on this machine, so it cannot be mounted.",
        "mkdir -p '{path}', or leave out that mount",
    ),
    Rule(
        r"statfs (?P<path>[^\n]+): permission denied",
        MountRefusedError,
        "{path} may not be read by this user, so it cannot be mounted.",
        "leave out that mount",
    ),
    Rule(
        r"crun: mount `(?P<path>[^`]+)` to `(?P<to>[^`]+)`: (?P<why>[^:\n]+)",
        MountRefusedError,
        "{path} cannot be mounted at {to}: {why}.",
        "leave out that mount, or choose another place for it",
    ),
    Rule(
        r"(?P<why>invalid container path [^\n]*|invalid option type [^\n]*|"
        r"incorrect volume format[^\n]*|[^\n:]*duplicate mount destination[^\n]*)",
        MountRefusedError,
        "podman refuses a mount: {why}.",
        "cagewrap --dry-run -- true, then correct that mount",
    ),
)

PROGRAM = (
    Rule(
        r"(?m)^podman: executable file not found",
        PodmanMissingError,
        "podman is not on PATH, and a cage cannot be made without it.",
        "sudo apt-get install podman",
    ),
    Rule(
        r'OCI runtime "(?P<runtime>[^"]+)" not found',
        PodmanMissingError,
        "{runtime} is not installed, and podman starts containers with it.",
        "sudo apt-get install {runtime}",
    ),
    Rule(
        r"could not find a working conmon",
        PodmanMissingError,
        "conmon is not installed, and podman starts containers with it.",
        "sudo apt-get install conmon",
    ),
    Rule(
        r"cagewrap-init.*(?:No such file|Exec format error|not found)|"
        r"exec container process `\\*/dev\\*/cagewrap-init",
        PodmanMissingError,
        "catatonit of this machine, which is the first process of a cage, cannot run in the image: "
        "it is not a static program.",
        "sudo apt-get install --reinstall catatonit",
    ),
    Rule(
        r"unknown (?:shorthand )?flag: (?P<flag>[^\n]+)",
        PodmanMissingError,
        "podman does not know {flag}: it is older than 4.3, or a --podman-arg is wrong.",
        "sudo apt-get install podman, or correct --podman-arg",
    ),
    Rule(
        r"invalid value for (?P<what>[^:\n]+): (?P<why>[^\n]+)|"
        r'invalid argument (?P<c>"[^"]*" for "[^"]+")',
        ConfigInvalidError,
        "podman does not accept a value: {what} {why}{c}.",
        "cagewrap config",
    ),
    Rule(
        r'container name \\*"(?P<name>[^"\\]+)\\*" is already in use',
        SessionError,
        "There is already a container named {name}, which is not this session's.",
        "podman rm --force {name}",
    ),
    Rule(
        r"no container with (?:name or )?ID|no such container",
        SessionError,
        "The session's container is gone; it was removed from outside.",
        "send the message again: a new one is made",
    ),
    Rule(
        r"container state improper|is not running",
        SessionError,
        "The session's container is not running; it was stopped from outside.",
        "send the message again: it is started",
    ),
)
