"""`cagewrap config`: every setting in force, and where it comes from."""

from __future__ import annotations

import json
import os

import click

from cagewrap import loginspec
from cagewrap.config import read_config, resolve
from cagewrap.environment import is_secret_name
from cagewrap.flags import SETTINGS, FlagValues
from cagewrap.model import EnvPolicy, Mount, PortForward, Settings
from cagewrap.paths import paths_from_env
from cagewrap.project import caller_cwd, find_project
from cagewrap.report import envelope
from cagewrap.values import NEVER, expand_home

HIDDEN = "(not shown)"


@click.command()
@click.option("--project", metavar="DIR", default="", help="Settings of this project.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.option("--path", "only_path", is_flag=True, help="Only where the file is, or would be.")
def config(*, project: str, as_json: bool, only_path: bool) -> None:
    """Show every setting in force, with where it comes from. Secrets are not shown."""
    env = dict(os.environ)
    paths = paths_from_env(env, os.getuid())
    if only_path:
        click.echo(envelope(None, path=paths.config_file) if as_json else paths.config_file)
        return
    found = read_config(paths.config_file)
    here = caller_cwd(env)
    at = os.path.join(here, expand_home(project, paths.home)) if project else here
    chosen = find_project(at, paths.home, at if project else "")
    flags = FlagValues(project=project)
    resolved = resolve(found, project=chosen.path, env=env, flags=flags)
    shown = show_settings(resolved.settings)
    rows = [
        {"key": row.key, "value": shown[row.key], "source": resolved.sources[row.key]}
        for row in SETTINGS
    ]
    if as_json:
        click.echo(envelope(None, path=found.path, found=found.found, settings=rows))
        return
    click.echo(f"# {found.path}" + ("" if found.found else " (no such file: defaults)"))
    for one in rows:
        click.echo(f"{one['key']} = {json.dumps(one['value'], ensure_ascii=False)}")
        click.echo(f"    {one['source']}")


def show_settings(settings: Settings) -> dict[str, object]:
    """Each key of the table with a value that JSON can hold and anyone may see.

    Sizes in bytes, durations in seconds or "never", null for podman's default.
    """
    limits, env, share = settings.limits, settings.env, settings.share
    return {
        "image": settings.image,
        "image.base": settings.workbench.base,
        "image.target": settings.workbench.target,
        "image.packages": list(settings.workbench.packages),
        "image.run": list(settings.workbench.run),
        "image.containerfile": settings.workbench.containerfile,
        "image.suite": settings.workbench.suite,
        "image.mirrors": list(settings.workbench.mirrors),
        "image.apt_options": list(settings.workbench.apt_options),
        "session": settings.session,
        "project": settings.project,
        "rm": settings.rm,
        "runtime": settings.runtime,
        "user": settings.identity.value,
        "network": settings.network.value,
        "mount": [_mount(one) for one in settings.mounts],
        "hide": list(settings.hide),
        "env": _fixed(env),
        "pass_env": list(env.passed),
        "secrets": list(env.secret_names),
        "secret_files": dict(env.secret_files),
        "memory": limits.memory_bytes,
        "cpus": limits.cpus,
        "pids": limits.pids,
        "shm_size": limits.shm_bytes,
        "device": list(settings.devices),
        "publish": [_ports(one) for one in settings.publish],
        "host_port": [_ports(one) for one in settings.host_ports],
        "podman_arg": list(settings.podman_args),
        "share": {
            "git_identity": share.git_identity,
            "claude": share.claude,
            "ssh_agent": share.ssh_agent,
            "gh": share.gh,
            "gitconfig": share.gitconfig,
            "nix": share.nix,
        },
        "cache": list(settings.caches),
        "session_env": list(settings.session_env),
        "idle_stop": _duration(settings.idle_stop_s),
        "keep_for": _duration(settings.keep_for_s),
        "login.mode": settings.login.mode.value,
        "login.claude": settings.login.claude,
        "login.token_command": list(settings.login.token_command),
        "agents.NAME": {one.name: {"program": one.program} for one in settings.agents},
        "login.NAME": {one.name: loginspec.shown(one) for one in settings.login.agents},
    }


def _mount(one: Mount) -> dict[str, object]:
    return {"source": one.source, "target": one.target, "ro": one.readonly}


def _ports(one: PortForward) -> str:
    return f"{one.listen}:{one.connect}"


def _fixed(env: EnvPolicy) -> dict[str, str]:
    return {name: HIDDEN if is_secret_name(name) else value for name, value in env.fixed}


def _duration(seconds: float) -> float | str:
    return "never" if seconds == NEVER else seconds
