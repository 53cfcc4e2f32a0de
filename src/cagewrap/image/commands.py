"""The commands that make images. Pure: values in, argv out."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cagewrap.image.recipe import (
    BASE_LABEL,
    BELOW_LABEL,
    RECIPE_LABEL,
    STAGE_LABEL,
    Recipe,
)
from cagewrap.image.store import WHOLE

DONE = "done"
"""Made by a step when it got to its end: a `podman unshare` that is killed may exit 0."""

_CONTAINED = (
    "setpriv", "--pdeathsig", "TERM", "--",
    "podman", "unshare",
    "setpriv", "--pdeathsig", "KILL", "--",
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
)  # fmt: skip
"""Nothing of what runs in this outlives us, however we end: it is a pid namespace of its own."""

_BASE_CHANGES = (
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "ENV LANG=C.UTF-8",
    "ENV DEBIAN_FRONTEND=noninteractive",  # an agent has no terminal to be asked on
    'CMD ["bash"]',
)
_BOOTSTRAP = (
    "--mode=root",
    "--variant=minbase",
    "--skip=chroot/mount/sys",  # not allowed to root of a user namespace; no package here needs it
    "--include=ca-certificates",
    "--dpkgopt=force-unsafe-io",  # a root file system that is not whole is thrown away
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    # Copies of this machine's own; podman gives every container its own.
    '--customize-hook=rm "$1/etc/hostname" "$1/etc/resolv.conf"',
)
_SETTINGS = (
    "PIP_CERT", "PIP_CLIENT_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS",
    "PIP_INDEX_URL", "PIP_NO_INDEX", "PIP_PROXY", "PIP_RETRIES", "PIP_TRUSTED_HOST",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_REGISTRY",
    "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "UV_DEFAULT_INDEX",
)  # fmt: skip
"""Variables of the owner's that say how package indexes are reached."""


def bootstrap_args(recipe: Recipe, scratch: str) -> tuple[str, ...]:
    """The command that makes `scratch`/root.tar from Debian packages."""
    return (
        *_CONTAINED,
        "sh", "-c", 'mmdebstrap "$@" && : >"$TMPDIR/' + DONE + '"', "sh",
        *_BOOTSTRAP,
        *(f"--aptopt={option}" for option in recipe.settings.apt_options),
        "--", recipe.settings.suite, os.path.join(scratch, "root.tar"), *recipe.settings.mirrors,
    )  # fmt: skip


def import_args(name: str, tar_file: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The command that makes an image of a root file system."""
    changes = (*_BASE_CHANGES, *(f"LABEL {key}={value}" for key, value in labels.items()))
    options = (word for change in changes for word in ("--change", change))
    return ("podman", "import", "--quiet", *options, "--", tar_file, name)


def build_args(
    context: str,
    file: str,
    *,
    base: str,
    target: str,
    name: str,
    labels: Mapping[str, str],
    scratch: str,
    mounts: tuple[str, ...],
) -> tuple[str, ...]:
    """The command that builds a stage of a Containerfile into one layer above `base`.

    scratch: has the secret `env`; the new image's id goes into `id` there. mounts: directories and
    files of this machine that the steps see, read-only, at their own paths.
    """
    return (
        *_CONTAINED,
        "podman", "build",
        # One layer, and no nameless image for each step that a killed build would leave.
        "--layers=false",
        "--pull=never",
        "--security-opt", "label=disable",
        "--secret", f"id=env,src={os.path.join(scratch, 'env')}",
        *(word for path in mounts for word in ("--volume", f"{path}:{path}:ro")),
        "--build-arg", f"BASE={base}",
        *(("--target", target) if target else ()),
        *(word for key, value in labels.items() for word in ("--label", f"{key}={value}")),
        "--iidfile", os.path.join(scratch, "id"),
        "--tag", name,
        "--file", file,
        context,
    )  # fmt: skip


def labels(recipe: str, below: str, base: str) -> dict[str, str]:
    """What an image says of itself: hashes of its recipe, of the image it stands on and of the
    base; "" for none."""
    return {
        STAGE_LABEL: WHOLE,
        RECIPE_LABEL: recipe,
        BELOW_LABEL: below,
        BASE_LABEL: base,
    }


def build_environment(env: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The shell file that tells a build's steps how package indexes are reached, and the files and
    directories of this machine that it names."""
    found = {name: env[name] for name in _SETTINGS if env.get(name)}
    text = "".join(f"export {name}={_quoted(value)}\n" for name, value in found.items())
    paths = [word for value in found.values() for word in value.split() if word.startswith("/")]
    return text, tuple(path for path in dict.fromkeys(paths) if os.path.exists(path))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
