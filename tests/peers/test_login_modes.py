"""Further modes, with the real claude: a directory that cages share, and logins made inside."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import places
from mock_api import MockApi
from mock_login import ACCESS, REFRESH, MockLogin, credentials
from test_login_access import QUESTION, env, login, said, store

__all__ = ("env", "login", "store")


def test_three_cages_share_a_directory_and_ask_for_one_token(
    caged: places.Caged, api: MockApi, login: MockLogin, store: Path
) -> None:
    """What Claude's own locks do for a directory that all can write to."""
    shared = store.parent / "shared/claude"
    shared.mkdir(parents=True, mode=0o700)
    file = shared / ".credentials.json"
    file.write_text(credentials(-10))
    file.chmod(0o600)
    login.delay_s = 2.0
    proxy, authority = login.env["HTTPS_PROXY"], login.env["NODE_EXTRA_CA_CERTS"]
    flags = ("--login", "directory", "--mount", authority, "--host-port", proxy.rpartition(":")[2])
    flags += ("--env", f"HTTPS_PROXY={proxy}", "--env", f"NODE_EXTRA_CA_CERTS={authority}")
    flags += ("--env", "NO_PROXY=127.0.0.1")  # or Claude asks it for http too
    names = ("a", "b", "c")

    def message(name: str) -> subprocess.CompletedProcess[bytes]:
        prefix = (*caged.prefix[:-1], *flags, "--session", name, "--")
        place = places.Caged(prefix, caged.shim, caged.project, caged.env)
        return place.claude("-p", f"hello from {name}")

    try:
        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(message, names))
        assert [(one.returncode, said(one)) for one in done] == [(0, "")] * 3
        assert login.posts == 1
        assert {one.authorization for one in api.messages} == {f"Bearer {ACCESS}1"}
        assert json.loads(file.read_text())["claudeAiOauth"]["refreshToken"] == f"{REFRESH}1"
    finally:
        for name in names:
            subprocess.run(
                [places.CAGEWRAP, "rm", "--force", name],
                env=os.environ | caged.env,
                cwd=caged.project,
                check=False,
                capture_output=True,
            )
        caged.run("true")  # for the fixture, which removes it


def test_a_login_made_inside_stays_with_the_session(caged: places.Caged, api: MockApi) -> None:
    caged.put_in_home(".claude/.credentials.json", credentials(3600, number=3))
    for _ in range(2):
        done = caged.claude(*QUESTION)
        assert (done.returncode, said(done)) == (0, "")
        assert api.messages[-1].authorization == f"Bearer {ACCESS}3"
    caged.cagewrap("stop")
    done = caged.claude(*QUESTION)
    assert done.returncode == 0
    assert api.messages[-1].authorization == f"Bearer {ACCESS}3"


def test_cagewraps_login_comes_before_one_made_inside(
    caged: places.Caged, api: MockApi, store: Path
) -> None:
    caged.put_in_home(".claude/.credentials.json", credentials(3600, number=3))
    file = store / ".credentials.json"
    file.write_text(credentials(3600, number=4))
    file.chmod(0o600)
    assert caged.claude(*QUESTION).returncode == 0
    assert api.messages[-1].authorization == f"Bearer {ACCESS}4"
