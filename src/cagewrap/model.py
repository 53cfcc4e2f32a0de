"""The values that pass between modules. All are frozen; none does I/O."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

DEFAULT_IMAGE = "localhost/cagewrap:latest"
"""The image that cages are made from unless set otherwise; `image build` makes it."""


class Identity(Enum):
    """Who the agent is inside: uid 0 (the owner outside), or the owner's own uid."""

    ROOT = "root"
    OWNER = "owner"


class NetworkMode(Enum):
    """`open`: internet and mesh as from the host, not the host's loopback. `none`: no network."""

    OPEN = "open"
    NONE = "none"


class LoginMode(Enum):
    """How an agent gets a login; docs/how-to/log-in.md says what each leaves in the cage.

    `access`: a file with cagewrap's own access token. `broker`: requests get the login outside.
    `token`: a variable of the agent's. `directory`: one writable login directory for all cages.
    `none`: nothing. `auto`: `access`, else `token`, else `none`.
    """

    ACCESS = "access"
    BROKER = "broker"
    TOKEN = "token"  # noqa: S105 - a word
    DIRECTORY = "directory"
    NONE = "none"
    AUTO = "auto"


class Mount(NamedTuple):
    """One bind mount. `source` may be "" only for `kind="tmpfs"` (an empty directory)."""

    source: str
    target: str
    readonly: bool
    kind: Literal["bind", "tmpfs"] = "bind"
    why: str = ""


class PortForward(NamedTuple):
    """A TCP port carried between loopbacks: `listen` is bound, `connect` is dialled."""

    listen: int
    connect: int


class Limits(NamedTuple):
    """Resource limits of a cage; None leaves podman's default. Bytes, CPUs, process count."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    shm_bytes: int | None = None


class EnvPolicy(NamedTuple):
    """What of the owner's environment reaches the agent, and what is added.

    passed: names or prefixes (`LC_*`) taken from the caller's environment.
    fixed: NAME -> value set always.
    secret_names: names taken from the caller's environment, kept out of every log.
    secret_files: NAME -> file whose content (one trailing newline dropped) is the value.
    """

    passed: tuple[str, ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    secret_names: tuple[str, ...] = ()
    secret_files: tuple[tuple[str, str], ...] = ()


class Share(NamedTuple):
    """Pieces of the owner's set-up that a cage may use."""

    git_identity: bool = True
    claude: bool = True
    ssh_agent: bool = False
    gh: bool = False
    gitconfig: bool = False
    nix: bool = False


class AgentLogin(NamedTuple):
    """`[login.NAME]`: an API that the broker reaches for an agent, and with which secret.

    base_url: http(s), without a final slash; "" for the agent's usual one. paths: `METHOD /PATH`
    below base_url, `*` at the end for all below; none: the agent's usual ones. header:
    `name: value`, where `{secret}` stands for the secret. port: on the cage's loopback, 0 for any.
    env: variables of the agent's, where `{url}` stands for the broker's address and
    `{placeholder}` for what it takes for the secret. The secret: the file's content or what the
    command prints; neither: that of the `[login]` table.
    """

    name: str
    base_url: str = ""
    paths: tuple[str, ...] = ()
    header: str = ""
    port: int = 0
    env: tuple[tuple[str, str], ...] = ()
    token_file: str = ""
    token_command: tuple[str, ...] = ()


class LoginSettings(NamedTuple):
    """The `[login]` table. claude: the program that renews the login, "" for the one found.

    token_command: prints the token for the modes `token` and `broker`; () for the token file.
    directory: the host's path of mode `directory`, "" for the one that cages share.
    """

    mode: LoginMode = LoginMode.AUTO
    claude: str = ""
    token_command: tuple[str, ...] = ()
    agents: tuple[AgentLogin, ...] = ()
    directory: str = ""


class AgentProgram(NamedTuple):
    """`[agents.NAME]`: where the program of that name comes from.

    program: `host`, `image`, `auto` (this machine's, if it is an agent's and there), or a path.
    """

    name: str
    program: str


class ImageSettings(NamedTuple):
    """The `[image]` table: what the image that cagewrap builds is made of.

    base: `auto`, `packages`, or an image. target: a stage of the shipped Containerfile. packages,
    run, containerfile: what the owner adds, in this order. suite: the release of Debian. mirrors,
    apt_options: where its packages come from, and how apt is set; both stay in the image.
    """

    base: str = "auto"
    target: str = "workbench"
    packages: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    containerfile: str = ""
    suite: str = "trixie"
    mirrors: tuple[str, ...] = ()
    apt_options: tuple[str, ...] = ()


class Settings(NamedTuple):
    """The settings in force: defaults < file < project table < environment < flags.

    Times in seconds. `session` is the name given, "" when the project alone is the key.
    """

    image: str
    runtime: str
    identity: Identity
    network: NetworkMode
    session: str
    project: str
    rm: bool
    mounts: tuple[Mount, ...]
    hide: tuple[str, ...]
    env: EnvPolicy
    limits: Limits
    devices: tuple[str, ...]
    publish: tuple[PortForward, ...]
    host_ports: tuple[PortForward, ...]
    podman_args: tuple[str, ...]
    share: Share
    session_env: tuple[str, ...]
    idle_stop_s: float
    keep_for_s: float
    login: LoginSettings = LoginSettings()
    agents: tuple[AgentProgram, ...] = ()
    workbench: ImageSettings = ImageSettings()
    caches: tuple[str, ...] = ()


class Owner(NamedTuple):
    """The user cagewrap runs as. `groups` are the supplementary group ids."""

    uid: int
    gid: int
    name: str
    home: str
    groups: tuple[int, ...] = ()


class CageSpec(NamedTuple):
    """Everything that is fixed when a container is made. `config_hash` covers all of it."""

    name: str
    project: str
    session: str
    image: str
    runtime: str
    identity: Identity
    network: NetworkMode
    mounts: tuple[Mount, ...]
    limits: Limits
    devices: tuple[str, ...]
    podman_args: tuple[str, ...]
    home: str
    labels: tuple[tuple[str, str], ...] = ()
