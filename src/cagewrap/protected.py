"""The places of the owner's machine that no cage may hold, and why.

Two questions are kept apart. Writing: a place whose content the owner's machine runs or obeys
later must never be writable. Reading: a place with secrets or sockets must not be there at all,
since a socket can be connected to on a read-only mount as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from cagewrap.errors import MountRefusedError
from cagewrap.model import Owner
from cagewrap.paths import Paths


class Scope(Enum):
    """TREE: the place, all above it and all below it. SELF: below it is fine."""

    TREE = "tree"
    SELF = "self"


class Place(NamedTuple):
    """One protected place. `reading`: refused read-only too. `spared`: directories not covered."""

    path: str
    why: str
    scope: Scope = Scope.TREE
    reading: bool = True
    spared: tuple[str, ...] = ()


SECRET = "it holds secrets of yours"  # noqa: S105 - a reason, not a secret
RUNS = "your machine runs or obeys what is written there"
SYSTEM = "it belongs to the system"
SOCKETS = "it holds sockets that act for you outside of the cage"
STORAGE = "it is the container engine's storage"
OURS = "it is cagewrap's own: whoever writes there leaves the cage"
EVERYTHING = "it holds everything of yours"

# Below HOME, in words of a text so that the list stays readable. Not there even read-only:
HOME_SECRETS = (
    ".ssh .gnupg .pki .password-store .aws .azure .kube .docker .oci .netrc .authinfo "
    ".authinfo.gpg .git-credentials .pgpass .my.cnf .mylogin.cnf .pypirc .npmrc .terraform.d "
    ".vault-token .s3cfg .boto .databrickscfg .cargo/credentials .cargo/credentials.toml "
    ".gem/credentials .m2/settings.xml .gradle/gradle.properties .mozilla .thunderbird .var snap "
    ".bash_history .zsh_history .python_history .psql_history .node_repl_history "
    ".claude.json .claude/.credentials.json .claude/projects .claude/history.jsonl "
    ".claude/shell-snapshots .codex/auth.json .codex/sessions .codex/history.jsonl .pi .gemini "
    ".cursor .copilot .config/gh .config/hub .config/git/credentials .config/gcloud "
    ".config/rclone .config/op .config/sops .config/age .config/glab-cli .config/github-copilot "
    ".config/containers/auth.json .config/google-chrome .config/chromium .config/BraveSoftware "
    ".config/mozilla .config/Bitwarden .config/1Password .config/Signal .config/Slack "
    ".local/share/keyrings .local/share/kwalletd .local/share/gnupg .local/share/opencode "
    ".local/share/fish/fish_history .local/share/mozilla"
)

# Read-only is fine:
HOME_RUNS = (
    ".config .local .cache .claude .codex .bashrc .bash_profile .bash_login .bash_logout "
    ".bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout .zsh .oh-my-zsh .inputrc "
    ".kshrc .cshrc .tcshrc .login .xinitrc .xprofile .xsession .xsessionrc .pam_environment "
    ".gitconfig .vimrc .gvimrc .vim .exrc .emacs .emacs.d .nanorc .tmux.conf .tmux .screenrc "
    ".gdbinit .lldbinit .irbrc .pryrc .psqlrc .sqliterc .Rprofile .curlrc .wgetrc .direnvrc "
    ".vscode .vscode-server .vscode-oss .cursor-server .windsurf bin go/bin .cargo .rustup "
    ".pyenv .nvm .rbenv .asdf .sdkman .deno .bun .volta .npm .npm-global .yarn .gem .m2 .gradle "
    ".nix-profile .nix-defexpr .conda miniconda3 anaconda3 miniforge3"
)

# Everything the kernel, the package manager or init own. Projects below /srv, /opt, /mnt, /media,
# /var/www and the like are common and fine: only the directory itself is refused.
SYSTEM_PLACES = (
    Place("/", EVERYTHING, Scope.SELF),
    *(
        Place(path, SYSTEM, reading=False)
        for path in (
            "/bin", "/boot", "/efi", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix",
            "/ostree", "/sbin", "/sysroot", "/usr", "/var/cache", "/var/lib", "/var/log",
            "/var/mail", "/var/spool",
        )
    ),
    *(Place(path, SYSTEM) for path in ("/dev", "/proc", "/sys", "/root", "/var/backups")),
    Place("/run", SOCKETS, spared=("/run/media",)),
    *(
        Place(path, STORAGE)
        for path in ("/var/lib/containers", "/var/lib/docker", "/var/lib/containerd")
    ),
    *(
        Place(path, "all programs of the machine share it", Scope.SELF)
        for path in ("/tmp", "/var/tmp")  # noqa: S108 - refused, not used
    ),
    *(
        Place(path, SYSTEM, Scope.SELF)
        for path in ("/home", "/media", "/mnt", "/opt", "/run/media", "/srv", "/var", "/var/www")
    ),
    Place("/tmp/.X11-unix", SOCKETS),  # noqa: S108
    Place("/tmp/.ICE-unix", SOCKETS),  # noqa: S108
)  # fmt: skip

# A variable that moves one of the directories above somewhere else.
MOVED_SECRETS = ("GNUPGHOME", "PASSWORD_STORE_DIR", "DOCKER_CONFIG", "GH_CONFIG_DIR", "CODEX_HOME")
MOVED_RUNS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "ZDOTDIR")
SOCKET_VARIABLES = ("SSH_AUTH_SOCK", "DOCKER_HOST", "CONTAINER_HOST")


def protected_paths(owner: Owner, paths: Paths, env: Mapping[str, str]) -> tuple[str, ...]:
    """Every place that is never mounted, as spelled and as resolved, sorted."""
    return tuple(sorted({place.path for place in protected_places(owner, paths, env)}))


def protected_places(owner: Owner, paths: Paths, env: Mapping[str, str]) -> tuple[Place, ...]:
    """The same with reasons. A place that is a symlink is there twice: as spelled and as it is."""
    homes = tuple(dict.fromkeys((owner.home, os.path.realpath(owner.home))))
    found: dict[tuple[str, bool], Place] = {}
    for place in _all_places(owner, paths, env):
        for path in dict.fromkeys((os.path.normpath(place.path), os.path.realpath(place.path))):
            spelled = place._replace(path=path)
            if spelled.scope is Scope.TREE and any(lies_in(home, path) for home in homes):
                spelled = spelled._replace(scope=Scope.SELF)
            found.setdefault((path, spelled.reading), spelled)
    return tuple(found.values())


def _all_places(owner: Owner, paths: Paths, env: Mapping[str, str]) -> Iterator[Place]:
    """The specific ones first: the first that refuses gives the reason."""
    yield Place(owner.home, "it is your whole home directory", Scope.SELF)
    yield from (
        Place(path, OURS) for path in (paths.state_dir, paths.config_file, paths.runtime_dir)
    )
    yield Place(_program_dir(), OURS, reading=False)
    yield Place(paths.podman_runtime_dir, SOCKETS)
    yield Place(os.path.join(owner.home, ".local/share/containers"), STORAGE)
    yield from (Place(os.path.join(owner.home, name), SECRET) for name in HOME_SECRETS.split())
    yield from _moved_places(owner, env)
    yield from (
        Place(os.path.join(owner.home, name), RUNS, reading=False) for name in HOME_RUNS.split()
    )
    yield Place(f"/tmp/tmux-{owner.uid}", SOCKETS)  # noqa: S108
    yield from SYSTEM_PLACES


def _moved_places(owner: Owner, env: Mapping[str, str]) -> Iterator[Place]:
    """What the environment says of where things are; HOME itself or above it says nothing new."""
    for name in (*MOVED_SECRETS, *MOVED_RUNS, "CLAUDE_CONFIG_DIR", "TMPDIR"):
        path = env.get(name, "")
        if not path.startswith("/") or lies_in(owner.home, os.path.normpath(path)):
            continue
        if name == "CLAUDE_CONFIG_DIR":
            yield Place(os.path.join(path, ".credentials.json"), f"{SECRET} ({name})")
        if name == "XDG_DATA_HOME":
            yield Place(os.path.join(path, "containers"), f"{STORAGE} ({name})")
        if name == "TMPDIR":
            yield Place(path, f"all your programs share it ({name})", Scope.SELF)
        elif name in MOVED_SECRETS:
            yield Place(path, f"{SECRET} ({name})")
        else:
            yield Place(path, f"{RUNS} ({name})", reading=False)
    for name in SOCKET_VARIABLES:
        path = env.get(name, "").removeprefix("unix://")
        if path.startswith("/"):
            yield Place(path, f"{SOCKETS} ({name})")
    if env.get("TMUX", "").startswith("/"):
        yield Place(os.path.dirname(env["TMUX"].partition(",")[0]), f"{SOCKETS} (TMUX)")


def _program_dir() -> str:
    """Where cagewrap's own code is: an agent that may write there rewrites its cage."""
    if getattr(sys, "frozen", False):
        return os.path.dirname(sys.executable)
    return os.path.dirname(os.path.abspath(__file__))


def lies_in(path: str, tree: str) -> bool:
    """Whether `path` is `tree` or below it, by spelling alone."""
    return path == tree or path.startswith(tree if tree.endswith("/") else tree + "/")


def refuse_protected(what: str, path: str, places: tuple[Place, ...], *, readonly: bool) -> None:
    """Raise MountRefusedError if `path` may not be mounted; `what` begins the sentence.

    Judges the spelling given and, where it exists, the directory behind it (a second bind mount
    of a protected directory has another path, and the same inode).
    """
    concerned = tuple(place for place in places if place.reading or not readonly)
    relation, place = _touched(path, concerned) or _same_directory(path, concerned) or ("", None)
    if place is not None:
        raise MountRefusedError(
            f"{what} is refused{relation}: {place.why}.", _hint(what, readonly=readonly)
        )


def _touched(path: str, places: tuple[Place, ...]) -> tuple[str, Place] | None:
    """The first place that `path` is, contains or lies in, with the words for it."""
    for place in places:
        if path == place.path:
            return "", place
    for place in places:
        if lies_in(place.path, path):
            return f" because {place.path} lies in it", place
        if place.scope is Scope.TREE and lies_in(path, place.path) and not _is_spared(path, place):
            return f" because it lies in {place.path}", place
    return None


def _same_directory(path: str, places: tuple[Place, ...]) -> tuple[str, Place] | None:
    """The same by inode, for the path and everything above it."""
    trees_last = sorted(places, key=lambda place: place.scope is Scope.TREE)
    known = {inode: place for place in trees_last if (inode := _inode(place.path))}
    above = path
    while above != "/":
        inode = _inode(above)
        place = known.get(inode) if inode else None
        if place and not _is_spared(path, place) and (above == path or place.scope is Scope.TREE):
            return f" because {above} is the same directory as {place.path}", place
        above = os.path.dirname(above)
    return None


def _is_spared(path: str, place: Place) -> bool:
    return any(lies_in(path, spared) for spared in place.spared)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _hint(what: str, *, readonly: bool) -> str:
    if what.startswith("The project"):
        return "cd into a project directory below it, or pass --project DIR"
    if readonly:
        return "mount only the file or directory below it that the agent needs"
    return "mount a directory made for the agent, or this one read-only (leave out rw)"
