"""`cagewrap login | logout`: cagewrap's own login to Claude."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict

import click

from cagewrap import logins, sessions
from cagewrap.errors import CagewrapError, LoginError, UsageError
from cagewrap.launch import Plan, make_plan
from cagewrap.logins import LoginInfo
from cagewrap.manage import Done
from cagewrap.paths import Paths, paths_from_env
from cagewrap.report import envelope

_JSON = click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
_MOST_CHARACTERS = 65536


@click.command()
@click.argument("what", type=click.Choice(["claude", "status"]), default="claude")
@click.option("--token", "takes_token", is_flag=True, help="Take a token from stdin.")
@_JSON
def login(*, what: str, takes_token: bool, as_json: bool) -> None:
    """Log cagewrap in to Claude, or say how it is logged in (`cagewrap login status`).

    On a terminal, Claude's own login runs in a cage of its own. With --token, or when stdin is no
    terminal, a token is read from stdin: from `claude setup-token`, or an API key.
    """
    if what == "status":
        if takes_token:
            raise UsageError("`login status` takes no token.", "cagewrap login --token")
        _show_status(logins.look(make_plan([])[0]), as_json=as_json)
    elif takes_token or not sys.stdin.isatty():
        _take_token(as_json=as_json)
    else:
        _log_in(as_json=as_json)


@click.command()
@click.argument("what", type=click.Choice(["claude"]), default="claude")
@_JSON
def logout(*, what: str, as_json: bool) -> None:
    """Remove cagewrap's own login and token, also from cages that run."""
    found = logins.forget(_paths())
    done = [Done("removed", what, one) for one in found] or [Done("unchanged", what, "none there")]
    _report(done, as_json=as_json)


def _paths() -> Paths:
    paths = paths_from_env(dict(os.environ), os.getuid())
    sessions.make_directories(paths)
    return paths


def _take_token(*, as_json: bool) -> None:
    if sys.stdin.isatty():
        text = click.prompt("Token", hide_input=True, err=True, default="", show_default=False)
    else:
        text = sys.stdin.read(_MOST_CHARACTERS)
    variable = logins.take_token(_paths(), text)
    _report([Done("kept", "claude", f"a token, passed as {variable}")], as_json=as_json)


def _log_in(*, as_json: bool) -> None:
    plan = make_plan([])[0]
    claude = logins.host_claude(plan)
    if not claude:
        ours = logins.passed_over(plan)
        raise LoginError(
            f"There is no claude on this machine{ours}, and a login is renewed by it every few "
            "hours.",
            "claude setup-token elsewhere, then cagewrap login --token",
        )
    with logins.login_cage(plan, claude) as (cage, command, directory):
        code = _run_in_child(cage, command)
        if code:
            raise LoginError(
                f"Claude's login ended with {code}; nothing has changed.", "cagewrap login"
            )
        found = logins.take_login(plan.paths, directory)
    _report([Done("logged in", "claude", _when(found.expires_at))], as_json=as_json)


def _run_in_child(cage: Plan, command: list[str]) -> int:
    """Run a command in the cage of a plan, on our own terminal; returns how it ended."""
    from cagewrap.wrap import wrap_plan

    child = os.fork()
    if child == 0:
        code = 123
        try:
            os.chdir(cage.project.cwd)
            os.environ["PWD"] = cage.project.cwd
            wrap_plan(cage, command)
        except CagewrapError as error:
            os.write(2, f"cagewrap: {error.message}\n  fix: {error.hint}\n".encode())
            code = error.exit_code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _show_status(found: LoginInfo, *, as_json: bool) -> None:
    if as_json:
        click.echo(envelope(None, login=asdict(found)))
        return
    rows = [("mode", f"{found.mode} ({found.why})")]
    rows += [("to log in", found.hint)] if found.hint else []
    if found.state == "absent":
        rows.append(("login", "none"))
    else:
        rows.append(("login", f"{found.state}; its token {_when(found.expires_at)}"))
        rows.append(("renewed", _renewed(found)))
        rows.append(("renewed by", found.claude or "nothing: there is no claude on this machine"))
    rows.append(("token", "kept" if found.has_token else "none"))
    for name, text in rows:
        click.echo(f"{name:<12}{text}")


def _renewed(found: LoginInfo) -> str:
    last = f"{_span(time.time() - found.refreshed_at)} ago" if found.refreshed_at else "not yet"
    if found.outcome in ("failed", "dead"):
        last += f"; tried {_span(time.time() - found.tried_at)} ago: {found.detail}"
    return last


def _when(moment: float) -> str:
    left = moment - time.time()
    return f"ends in {_span(left)}" if left > 0 else f"ended {_span(-left)} ago"


def _span(seconds: float) -> str:
    minutes = int(seconds / 60)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _report(done: list[Done], *, as_json: bool) -> None:
    if as_json:
        click.echo(envelope(None, done=[asdict(one) for one in done]))
        return
    for one in done:
        click.echo(f"{one.what} {one.name}" + (f" ({one.detail})" if one.detail else ""))
