"""`cagewrap doctor`: everything that can keep a cage from starting, with what mends it."""

from __future__ import annotations

import json
import os
import pwd
import sys
from dataclasses import asdict, replace

import click

from cagewrap import __version__, control, disk, proc
from cagewrap.builds import own_build
from cagewrap.config import read_config, resolve
from cagewrap.doctor import CheckResult, Host, Wish, examine, exit_code_of
from cagewrap.doctor.keepers import check_keepers
from cagewrap.doctor.result import passed, raised, warned
from cagewrap.errors import CagewrapError, DirectoryError, MountRefusedError
from cagewrap.flags import FlagValues
from cagewrap.image.settings import read_staleness
from cagewrap.model import DEFAULT_IMAGE, NetworkMode
from cagewrap.paths import paths_from_env
from cagewrap.project import caller_cwd, find_project
from cagewrap.sessions import list_records

_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.option("--no-probe", is_flag=True, help="Do not start a container to try.")
@click.option("--image", default="", metavar="NAME", help="Check with this image.")
def doctor(*, as_json: bool, no_probe: bool, image: str) -> None:
    """Check everything that a cage needs of this machine, and say what mends what is wrong.

    Exits with 0, or with the code of the first check that failed.
    """
    env, uid = _environment(), os.getuid()
    wish, settings = _settings(env, uid)
    if image:
        wish = replace(wish, image=image)
    host = Host(env=env, uid=uid, user=_user_name(uid), capture=proc.capture)
    results = (*settings, *examine(host, wish, probe=not no_probe))
    if as_json:
        click.echo(render_json(results))
    else:
        click.echo(render_table(results))
    sys.exit(exit_code_of(results))


def render_json(results: tuple[CheckResult, ...]) -> str:
    """One object: the version, whether cages can start, and every check."""
    document = {
        "cagewrap": __version__,
        "ok": exit_code_of(results) == 0,
        "checks": [asdict(result) for result in results],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def render_table(results: tuple[CheckResult, ...]) -> str:
    """A line for each check, its fix below it, and a summary."""
    width = max(len(result.id) for result in results)
    lines = []
    for result in results:
        mark = click.style(_MARKS[result.status], fg=_COLOURS[result.status])
        lines.append(f"{mark}  {result.id:{width}}  {result.found}")
        if result.fix:
            lines.append(f"{'':{width + 6}}  fix: {result.fix}")
    counts = {status: sum(one.status == status for one in results) for status in _MARKS}
    lines.append(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures")
    return "\n".join(lines)


def _environment() -> dict[str, str]:
    """The caller's, with the runtime directory that every podman of ours is given."""
    env = dict(os.environ)
    try:
        return env | {"XDG_RUNTIME_DIR": paths_from_env(env, os.getuid()).podman_runtime_dir}
    except CagewrapError:
        return env


def _settings(env: dict[str, str], uid: int) -> tuple[Wish, tuple[CheckResult, ...]]:
    """What the settings in force here ask for, and whether they could be read.

    Where there is no directory to read them from, the checks of directories say so.
    """
    wanted = "settings that can be used"
    default = Wish(DEFAULT_IMAGE)
    try:
        paths = paths_from_env(env, uid)
        config = read_config(paths.config_file)
        project = find_project(caller_cwd(env), paths.home, env.get("CAGEWRAP_PROJECT", ""))
        settings = resolve(config, project=project.path, env=env, flags=FlagValues()).settings
    except DirectoryError:
        return default, ()
    except MountRefusedError as error:
        return default, (warned("config", error.message, wanted, error.hint),)
    except CagewrapError as error:
        return default, (raised("config", error, wanted),)
    where = config.path if config.found else "defaults"
    has_network = settings.network is not NetworkMode.NONE
    results = [passed("config", where, wanted)]
    stale = None
    try:
        stale = read_staleness(paths, env)
    except CagewrapError as error:
        results.append(warned("image-recipe", error.message, "an image of ours", error.hint))
    names = [record.name for record in list_records(paths)]
    answers, _ = control.ask_all(paths, names, {"do": "status"})
    results.append(check_keepers(answers, own_build().text))
    wish = Wish(
        settings.image,
        settings.runtime,
        has_network,
        measure=lambda: disk.measure(paths, env, list_records(paths)),
        stale=stale,
    )
    return wish, tuple(results)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
