"""The configuration file, the order of precedence, `cagewrap config`, and the reference page."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from cagewrap import flags
from cagewrap.cli.config import config as config_command
from cagewrap.cli.config import show_settings
from cagewrap.config import read_config, resolve
from cagewrap.environment import DEFAULT_PASSED
from cagewrap.errors import ConfigInvalidError, UnsupportedError
from cagewrap.flags import parse_wrap_flags
from cagewrap.model import (
    AgentLogin,
    AgentProgram,
    Identity,
    ImageSettings,
    LoginMode,
    LoginSettings,
    NetworkMode,
    PortForward,
    Share,
)

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture
def write(tmp_path):
    def write_file(text: str | bytes, mode: int = 0o600) -> str:
        path = tmp_path / "cagewrap.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return str(path)

    return write_file


def settle(path, *argv, project="/p", env=None):
    return resolve(
        read_config(path),
        project=project,
        env={"HOME": "/home/me", **(env or {})},
        flags=parse_wrap_flags(argv),
        real_path=lambda path: path,
    )


def test_a_missing_file_means_defaults(tmp_path):
    found = read_config(str(tmp_path / "none.toml"))
    assert not found.found
    resolved = settle(found.path)
    settings = resolved.settings
    assert settings.image == "localhost/cagewrap:latest"
    assert (settings.runtime, settings.identity) == ("crun", Identity.ROOT)
    assert settings.network is NetworkMode.OPEN
    assert (settings.session, settings.project, settings.rm) == ("", "/p", False)
    assert (settings.idle_stop_s, settings.keep_for_s) == (1800, 30 * 86400)
    assert settings.share == Share()
    assert settings.env.passed == DEFAULT_PASSED
    assert set(resolved.sources.values()) == {"default", "current directory"}
    assert set(resolved.sources) == {row.key for row in flags.SETTINGS}


WHOLE = """
rm = true
cache = ["pip", "uv"]
runtime = "runc"
user = "owner"
network = "none"
mount = ["/data,rw", {source = "~/my, notes", target = "/notes"}]
hide = [".env", "~/x"]
pass_env = ["MY_*", "!GEMINI_*"]
secrets = ["GH_TOKEN"]
memory = 8388608
cpus = 1.5
pids = 100
shm_size = "64m"
device = ["/dev/kvm"]
publish = [3000, "8080:80"]
host_port = ["5432"]
podman_arg = ["--cap-add", "SYS_PTRACE"]
session_env = ["SHROOMS_AGENT_SESSION"]
idle_stop = "never"
keep_for = "2h"
[image]
name = "img:1"
base = "localhost/debian:1"
target = "desktop"
packages = ["jq", "tree"]
run = ["npm i -g x"]
containerfile = "~/Containerfile"
suite = "bookworm"
mirrors = ["http://m.example/debian"]
apt_options = ["A::B c"]
[env]
GREETING = "hello = \\"you\\""
[secret_files]
KEY = "~/key"
[share]
git_identity = false
ssh_agent = true
[login]
mode = "token"
claude = "~/bin/claude"
token_command = ["pass", "show", "claude"]
[agents.claude]
program = "image"
[agents.mine]
program = "~/tools/mine"
[login.codex]
base_url = "https://api.example.com/v1/"
paths = ["POST /responses", "GET /models*"]
header = "authorization: Bearer {secret}"
port = 4000
env = {OPENAI_BASE_URL = "{url}", OPENAI_API_KEY = "{placeholder}"}
token_file = "~/.secrets/codex"
"""


def test_every_key_of_the_file(write):
    settings = settle(write(WHOLE)).settings
    assert (settings.image, settings.rm, settings.runtime) == ("img:1", True, "runc")
    assert (settings.identity, settings.network) == (Identity.OWNER, NetworkMode.NONE)
    assert [(m.source, m.target, m.readonly) for m in settings.mounts] == [
        ("/data", "/data", False),
        ("/home/me/my, notes", "/notes", True),
    ]
    assert settings.hide == (".env", "/home/me/x")
    assert settings.env.passed[len(DEFAULT_PASSED) :] == (
        "SHROOMS_AGENT_SESSION",
        "MY_*",
        "!GEMINI_*",
    )
    assert settings.env.fixed == (("GREETING", 'hello = "you"'),)
    assert settings.env.secret_names == ("GH_TOKEN",)
    assert settings.env.secret_files == (("KEY", "/home/me/key"),)
    limits = settings.limits
    assert (limits.memory_bytes, limits.cpus, limits.pids) == (8 << 20, 1.5, 100)
    assert limits.shm_bytes == 64 << 20
    assert settings.publish == (PortForward(3000, 3000), PortForward(8080, 80))
    assert settings.podman_args == ("--cap-add", "SYS_PTRACE")
    assert settings.share == Share(git_identity=False, ssh_agent=True)
    assert settings.workbench == ImageSettings(
        base="localhost/debian:1",
        target="desktop",
        packages=("jq", "tree"),
        run=("npm i -g x",),
        containerfile="/home/me/Containerfile",
        suite="bookworm",
        mirrors=("http://m.example/debian",),
        apt_options=("A::B c",),
    )
    assert settings.caches == ("pip", "uv")
    assert settings.session_env == ("SHROOMS_AGENT_SESSION",)
    assert (settings.idle_stop_s, settings.keep_for_s) == (math.inf, 7200)
    assert settings.login == LoginSettings(
        mode=LoginMode.TOKEN,
        claude="/home/me/bin/claude",
        token_command=("pass", "show", "claude"),
        agents=(
            AgentLogin(
                name="codex",
                base_url="https://api.example.com/v1",
                paths=("POST /responses", "GET /models*"),
                header="authorization: Bearer {secret}",
                port=4000,
                env=(("OPENAI_BASE_URL", "{url}"), ("OPENAI_API_KEY", "{placeholder}")),
                token_file="/home/me/.secrets/codex",
            ),
        ),
    )
    assert settings.agents == (
        AgentProgram("claude", "image"),
        AgentProgram("mine", "/home/me/tools/mine"),
    )
    keys = {
        row.key.removeprefix("login.").removeprefix("image.")
        for row in flags.SETTINGS
        if row.in_file
    } - {"agents.NAME"}
    written = {line.partition(" ")[0].strip("[]") for line in WHOLE.splitlines()} | {"NAME"}
    assert keys <= written, "this test must use every key"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("image = ", "is not TOML"),
        (b"image = '\xff'", "byte 9 is not UTF-8"),
        ("imgae = 'x'", "imgae is not a setting (did you mean image"),
        ("[image]\nbasis = 'x'", "image.basis is not a setting (did you mean image.base"),
        ("[image]\nrun = 'x'", "image.run = 'x': must be a list"),
        ("[image]\npackages = ['a b']", "must be the name of a Debian package"),
        ("[project.'/p'.image]\nrun = ['x']", "all projects share the image"),
        ("cache = ['yarn']", "must be one of apt, cargo, npm, pip, uv"),
        ("zzz = 1", "zzz is not a setting."),
        ("login = 'access'", "login: must be a table: [login]"),
        ("[login]\nmode = 'acces'", "login.mode = 'acces': must be one of"),
        ("[login]\ntokn_command = ['x']", "did you mean login.token_command"),
        ("[login]\ntoken_command = 'x'", "login.token_command = 'x': must be a list"),
        ("[login]\nclaude = 'claude'", "must be an absolute path"),
        ("[login.codex]\nbase = 1", "codex has the key 'base' (did you mean base_url?)"),
        ("[login.codex]\npaths = []", "codex needs base_url"),
        ("agents = 'host'", "agents: must be a table: [agents]"),
        ("[agents]\nclaude = 'host'", "claude must be a table: [agents.claude]"),
        ("[agents.claude]\nprogramm = 'host'", "did you mean program"),
        ("[agents.claude]\nprogram = 'hots'", "did you mean host"),
        ("[agents.claude]\nprogram = 'bin/claude'", "or a path that starts with / or ~/"),
        ("[agents.claude]\nprogram = 1", "claude: program must be a text in quotes"),
        ("[agents.'a/b']\nprogram = 'host'", "must be the name of a program"),
        ("[login.claude]\npaths = ['/v1']", "claude: a path must be METHOD /PATH"),
        ("[login.claude]\npaths = ['GET /v1/../x']", "claude: a path must be METHOD /PATH"),
        ("[login.claude]\nbase_url = 'api.example.com'", "base_url must be a URL"),
        ("[login.claude]\nbase_url = 'https://a@b/'", "base_url must be a URL"),
        ("[login.claude]\nheader = 'x-key: 1'", "header must be such as"),
        ("[login.claude]\nport = '80'", "claude: port must be a number"),
        ("[login.claude]\nenv = {HOME = 'x'}", "names HOME, which cagewrap sets itself"),
        (
            "[login.claude]\ntoken_file = '/a'\ntoken_command = ['b']",
            "claude has token_file and token_command",
        ),
        ("session = 'x'", "session is given by --session or CAGEWRAP_SESSION, not in the file"),
        ("dry_run = true", "dry_run is given by --dry-run, not in the file"),
        ("image = 3", "image = 3: must be a text in quotes"),
        ("memory = true", "memory = True: must be a number"),
        ("memory = '4x'", "memory = '4x': must be a size"),
        ("rm = 'true'", "rm = 'true': must be true or false, without quotes"),
        ("rm = 1", "rm = 1: must be true or false"),
        ("pids = 1.5", "pids = '1.5': must be a whole number"),
        ("cpus = nan", "cpus = 'nan': must be a number of CPUs"),
        ("idle_stop = 30", "idle_stop = 30: must be a text"),
        ("mount = '/a'", "mount = '/a': must be a list"),
        ("mount = ['a']", "mount = 'a': has the field 'a'"),
        ("[[mount]]\nsuorce = '/a'", "mount: has the key 'suorce' (did you mean source"),
        ("[[mount]]\nsource = '/a'\nrw = 'yes'", "mount: needs a true or false for rw"),
        ("[[mount]]\nsource = '/a'\nrw = true\nro = true", "says ro and rw"),
        ("[[mount]]", "mount: is an empty table"),
        ("hide = ['../x']", "hide = '../x': must be a path inside the project"),
        ("env = ['A=b']", "env: must be a table: [env]"),
        ("[env]\nA = 1", "env: needs a text in quotes for A"),
        ("[env]\n'A=B' = 'c'", "env: names no variable"),
        ("[env]\nHOME = '/x'", "env: names HOME, which cagewrap sets itself"),
        (
            "[share]\ngit-identity = true",
            "share: has the key 'git-identity' (did you mean git_iden",
        ),
        ("[share]\ngh = 'yes'", "share: needs true or false for gh"),
        ("[project.\"/x\"]\nmemroy = '4g'", '[project."/x"].memroy is not a setting (did you mean'),
        ("[project.\"/x\"]\nmemory = '4q'", "[project.\"/x\"].memory = '4q': must be a size"),
        ('[project."/x".project]', '[project."/x"].project is given by --project, not'),
        ('[project."x"]', '[project."x"]: must be an absolute path'),
        ('[project."/x/*/y"]', "may have a * only as its last part"),
        ("project = 3", "project = 3: must be tables"),
        ("project = {'/x' = 3}", '[project."/x"]: must be a table'),
    ],
)
def test_refuses_the_whole_file_for_one_error(write, text, wanted):
    path = write(text)
    with pytest.raises(ConfigInvalidError) as caught:
        read_config(path)
    assert wanted.replace("project = 3: must", "project: must") in caught.value.message
    assert path in caught.value.message
    assert caught.value.hint


def test_errors_do_not_repeat_what_may_be_secret(write):
    for text in (
        '[env]\nA = ["planted"]',
        'secrets = ["A=planted"]',
        '[secret_files]\nA = "planted"',
    ):
        with pytest.raises(ConfigInvalidError) as caught:
            read_config(write(text))
        assert "planted" not in caught.value.message + caught.value.hint


def test_refuses_krun_in_the_file(write):
    with pytest.raises(UnsupportedError):
        read_config(write("runtime = 'krun'"))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_refuses_a_file_others_can_write(write, mode):
    with pytest.raises(ConfigInvalidError, match="can be written by others") as caught:
        read_config(write("", mode))
    assert caught.value.hint.startswith("chmod go-w ")


def test_refuses_a_file_of_somebody_else(write):
    path = write("")
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(ConfigInvalidError, match="belongs to uid 12345"):
            read_config(path, uid=1000)
        os.chown(path, 0, 0)
        assert read_config(path, uid=1000).found
    else:
        with pytest.raises(ConfigInvalidError, match="belongs to uid"):
            read_config(path, uid=os.geteuid() + 1)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_refuses_what_is_no_readable_file(tmp_path, make):
    path = tmp_path / "cagewrap.toml"
    make(path)
    with pytest.raises(ConfigInvalidError, match=r"cagewrap\.toml"):
        read_config(str(path))


def test_refuses_a_path_through_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigInvalidError, match="cannot be read: Not a directory"):
        read_config(str(tmp_path / "file" / "cagewrap.toml"))


def test_follows_a_link(tmp_path, write):
    link = tmp_path / "link.toml"
    link.symlink_to(write("image = 'x'"))
    assert read_config(str(link)).values.get(flags.IMAGE) == "x"


def test_each_level_wins_over_the_one_below(write):
    path = write("image = 'file'\n[project.\"/p\"]\nimage = 'table'\n")
    env = {"CAGEWRAP_IMAGE": "variable"}
    table = [
        (settle(path, project="/other"), "file", path),
        (settle(path), "table", f'{path} [project."/p"]'),
        (settle(path, env=env), "variable", "CAGEWRAP_IMAGE"),
        (settle(path, env={"CAGEWRAP_IMAGE": ""}), "table", f'{path} [project."/p"]'),
        (settle(path, "--image=flag", env=env), "flag", "--image"),
    ]
    for resolved, value, source in table:
        assert (resolved.settings.image, resolved.sources["image"]) == (value, source)


def test_a_later_level_can_take_a_switch_back(write):
    path = write("rm = true")
    assert settle(path).settings.rm
    assert not settle(path, "--rm=false").settings.rm
    assert not settle(path, env={"CAGEWRAP_RM": "0"}).settings.rm


def test_lists_add_up_and_the_later_of_two_alike_holds(write):
    path = write("""
        mount = ["/a", "/b"]
        hide = ["x"]
        publish = [3000, 4000]
        podman_arg = ["--label", "a"]
        session_env = ["ONE"]
        [project."/p"]
        mount = ["source=/c,target=/a,rw"]
        session_env = ["TWO"]
        """)
    resolved = settle(
        path, "--hide", "x", "--hide", "y", "--publish", "3000:80", "--podman-arg", "--label"
    )
    settings = resolved.settings
    assert [(m.source, m.target) for m in settings.mounts] == [("/c", "/a"), ("/b", "/b")]
    assert settings.hide == ("x", "y")
    assert settings.publish == (PortForward(3000, 80), PortForward(4000, 4000))
    assert settings.podman_args == ("--label", "a", "--label")
    assert settings.session_env == ("TWO",)
    assert resolved.sources["mount"] == f'{path} + {path} [project."/p"]'
    assert resolved.sources["hide"] == f"{path} + --hide"
    assert resolved.sources["session_env"] == f'{path} [project."/p"]'


def test_the_later_wish_about_a_variable_holds(write):
    path = write("secrets = ['B', 'C']\n[env]\nA = '1'\nD = '2'\n")
    policy = settle(path, "--env", "A", "--env", "B=x", "--env=!C", "--secret=D=/f").settings.env
    assert policy.fixed == (("B", "x"),)
    assert policy.secret_names == ()
    assert policy.secret_files == (("D", "/f"),)
    assert policy.passed[-2:] == ("A", "!C")


def test_share_is_settled_piece_by_piece(write):
    path = write("[share]\ngh = true\nssh_agent = true\n")
    share = settle(path, "--share=no-gh", "--share=gitconfig").settings.share
    assert share == Share(git_identity=True, ssh_agent=True, gh=False, gitconfig=True)


def test_session_comes_from_flag_variable_or_named_variable(write):
    path = write("session_env = ['FIRST', 'SECOND']")
    env = {"FIRST": "", "SECOND": "two"}
    for argv, more, session, source in (
        ([], {}, "two", "SECOND (session_env)"),
        ([], {"FIRST": "one"}, "one", "FIRST (session_env)"),
        ([], {"CAGEWRAP_SESSION": "ours"}, "ours", "CAGEWRAP_SESSION"),
        (["--session=flag"], {"CAGEWRAP_SESSION": "ours"}, "flag", "--session"),
    ):
        resolved = settle(path, *argv, env={**env, **more})
        assert (resolved.settings.session, resolved.sources["session"]) == (session, source)


@pytest.mark.parametrize(
    ("name", "value"),
    [("FIRST", "a\nb"), ("CAGEWRAP_SESSION", "x" * 201), ("CAGEWRAP_MEMORY", "lots")],
)
def test_refuses_a_bad_variable(write, name, value):
    path = write("session_env = ['FIRST']")
    with pytest.raises(ConfigInvalidError, match=name) as caught:
        settle(path, env={name: value})
    assert caught.value.hint.startswith(f"unset {name}")


@pytest.mark.parametrize(
    ("project", "image"),
    [
        ("/w", "exact"),
        ("/w/x", "star"),
        ("/w/x/y", "deep"),
        ("/w/x/y/z", "deep"),
        ("/w/s", "own"),
        ("/wider", "default"),
        ("/home/me/code/p", "home"),
    ],
)
def test_one_project_table_applies(write, project, image):
    path = write("""
        image = "default"
        [project."/w/"]
        image = "exact"
        [project."/w/*"]
        image = "star"
        [project."/w/x/*"]
        image = "deep"
        [project."/w/s"]
        image = "own"
        [project."~/code/*"]
        image = "home"
        """)
    wanted = {"/w/x": "star"}.get(project, image)
    assert settle(path, project=project).settings.image == wanted


def test_refuses_two_tables_for_one_project(write):
    path = write('[project."/home/me/x"]\n[project."~/x"]\n')
    with pytest.raises(ConfigInvalidError, match="names the same directory"):
        settle(path, project="/home/me/x")
    assert settle(path, project="/elsewhere")


def test_a_project_table_may_spell_a_link(tmp_path, write):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = write(f"[project.\"{tmp_path}/link\"]\nimage = 'linked'\n")
    found = resolve(
        read_config(path),
        project=str(tmp_path / "real"),
        env={"HOME": "/"},
        flags=parse_wrap_flags([]),
    )
    assert found.settings.image == "linked"


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("XDG_", "CAGEWRAP_"))]:
        monkeypatch.delenv(name)
    for name in ("home/.config", "home/proj/sub"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/proj/.git").mkdir()
    (tmp_path / "home/proj/.git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "home/proj/.git/objects").mkdir()
    (tmp_path / "home/proj/.git/refs").mkdir()
    monkeypatch.chdir(tmp_path / "home/proj/sub")
    with tempfile.TemporaryDirectory(prefix="run-") as short:  # sockets below it have short names
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield tmp_path / "home"


def run(*argv):
    result = CliRunner().invoke(config_command, argv, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_config_command_shows_value_and_source(home):
    file = home / ".config/cagewrap.toml"
    file.write_text(
        'memory = "1g"\nsecrets = ["GH_TOKEN"]\n[env]\nMY_API_KEY = "planted"\nPLAIN = "x"\n'
        '[project."~/proj"]\nimage = "mine"\n'
    )
    file.chmod(0o600)
    text = run()
    assert 'image = "mine"\n    ' in text
    assert '[project."~/proj"]' in text
    assert f"memory = {1 << 30}\n    {file}\n" in text
    assert "planted" not in text
    found = json.loads(run("--json"))
    assert found["path"] == str(file)
    assert found["found"] is True
    rows = {row["key"]: row for row in found["settings"]}
    assert rows["env"]["value"] == {"MY_API_KEY": "(not shown)", "PLAIN": "x"}
    assert rows["secrets"]["value"] == ["GH_TOKEN"]
    assert rows["project"]["value"] == str(home / "proj")
    other = home / "other"
    other.mkdir()
    rows = {
        row["key"]: row for row in json.loads(run("--json", "--project", "~/other"))["settings"]
    }
    assert rows["project"] == {"key": "project", "value": str(other), "source": "--project"}
    assert rows["image"]["source"] == "default"


def test_config_command_says_where_the_file_would_be(home):
    assert run("--path") == f"{home}/.config/cagewrap.toml\n"
    assert "(no such file: defaults)" in run()


def test_every_setting_is_shown(tmp_path):
    shown = show_settings(settle(str(tmp_path / "none"), "--idle-stop=never").settings)
    assert set(shown) == {row.key for row in flags.SETTINGS}
    assert "Infinity" not in json.dumps(shown)


def test_every_setting_is_in_the_reference():
    text = (DOCS / "config.md").read_text("utf-8")
    for row in (*flags.SETTINGS, *flags.ACTIONS):
        for word in filter(None, (row.in_file and row.key, row.flag, row.env)):
            assert f"`{word}`" in text, word


def test_every_default_pass_is_in_the_reference():
    text = (DOCS / "environment.md").read_text("utf-8")
    for rule in DEFAULT_PASSED:
        assert f"`{rule.removeprefix('!')}`" in text, rule
