"""The words before `--`, and the parsers of single values."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from cagewrap import flags
from cagewrap.errors import UnsupportedError, UsageError
from cagewrap.flags import parse_wrap_flags, wrap_help
from cagewrap.model import Identity, Mount, NetworkMode, PortForward
from cagewrap.values import EnvEntry


def given(*argv: str) -> dict[str, object]:
    return dict(parse_wrap_flags(argv).values.given)


def test_no_flags_give_nothing():
    assert parse_wrap_flags([]) == flags.FlagValues()


def test_both_spellings_of_a_value():
    assert given("--image", "a:1") == given("--image=a:1") == {"image": "a:1"}
    assert given("--env=A=b=c") == {"env": (EnvEntry("set", "A", "b=c"),)}


def test_the_last_of_a_single_value_holds():
    assert given("--image", "a", "--image=b") == {"image": "b"}


def test_repeatable_flags_add_up_in_order():
    assert given("--podman-arg", "--cap-add", "--podman-arg", "SYS_PTRACE") == {
        "podman_arg": ("--cap-add", "SYS_PTRACE")
    }


def test_switches_and_actions():
    found = parse_wrap_flags(["--rm", "--dry-run", "--debug", "--project", "sub"])
    assert found.values.get(flags.RM) is True
    assert (found.dry_run, found.verbose, found.debug) == (True, False, True)
    assert found.project == "sub"
    assert given("--rm=false") == {"rm": False}


@pytest.mark.parametrize(
    ("argv", "key", "value"),
    [
        (["--user", "owner"], "user", Identity.OWNER),
        (["--network=none"], "network", NetworkMode.NONE),
        (["--memory", "512m"], "memory", 512 << 20),
        (["--memory", "1.5GiB"], "memory", 3 << 29),
        (["--memory", "6291456"], "memory", 6 << 20),
        (["--shm-size", "64MB"], "shm_size", 64 << 20),
        (["--cpus", "0.5"], "cpus", 0.5),
        (["--pids", "-1"], "pids", -1),
        (["--publish", "3000"], "publish", (PortForward(3000, 3000),)),
        (["--publish", "8080:3000"], "publish", (PortForward(8080, 3000),)),
        (["--host-port", "5432:6543"], "host_port", (PortForward(5432, 6543),)),
        (["--idle-stop", "90s"], "idle_stop", 90.0),
        (["--idle-stop", "never"], "idle_stop", math.inf),
        (["--keep-for", "30d"], "keep_for", 2592000.0),
        (["--hide", "./.env"], "hide", (".env",)),
        (["--hide", "**/*.pem"], "hide", ("**/*.pem",)),
        (["--hide", ".//secrets/"], "hide", ("secrets/",)),
        (["--hide", "/p/x/./"], "hide", ("/p/x/",)),
        (["--device", "/dev/dri:/dev/dri:rw"], "device", ("/dev/dri:/dev/dri:rw",)),
        (["--device", "nvidia.com/gpu=all"], "device", ("nvidia.com/gpu=all",)),
        (["--share", "ssh-agent"], "share", (("ssh_agent", True),)),
        (["--share", "no-git-identity"], "share", (("git_identity", False),)),
        (["--env", "NAME"], "env", (EnvEntry("pass", "NAME"),)),
        (["--env", "!GEMINI_*"], "env", (EnvEntry("pass", "!GEMINI_*"),)),
        (["--env", "EMPTY="], "env", (EnvEntry("set", "EMPTY", ""),)),
        (["--secret", "NAME"], "secrets", (EnvEntry("secret", "NAME"),)),
        (["--secret", "N=~/k"], "secrets", (EnvEntry("secret_file", "N", "~/k"),)),
        (["--session", "café 👩‍💻"], "session", "café 👩‍💻"),
    ],
)
def test_values(argv, key, value):
    assert given(*argv) == {key: value}


def mount(text: str) -> Mount:
    (found,) = parse_wrap_flags(["--mount", text]).values.get(flags.MOUNT)
    return found


@pytest.mark.parametrize(
    ("text", "source", "target", "readonly"),
    [
        ("/data", "/data", "/data", True),
        ("/data/,rw", "/data", "/data", False),
        ("~/notes,rw", "~/notes", "~/notes", False),
        ("source=/a,target=/b", "/a", "/b", True),
        ("type=bind,src=/a,dst=/b,ro=false", "/a", "/b", False),
        ("src=/a,destination=/b,readonly", "/a", "/b", True),
        ("/a=b,ro", "/a=b", "/a=b", True),
        ('"source=/a,b","target=/c ""d"""', "/a,b", '/c "d"', True),
        ('"/a,b",rw', "/a,b", "/a,b", False),
        ("//a//b/.", "/a/b", "/a/b", True),
        ('"/new\nline"', "/new\nline", "/new\nline", True),
        ("/caf\udce9", "/caf\udce9", "/caf\udce9", True),
    ],
)
def test_mount_syntax(text, source, target, readonly):
    found = mount(text)
    assert (found.source, found.target, found.readonly) == (source, target, readonly)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("data", "field 'data'"),
        ("source=data", "absolute"),
        ("/a/../b", ".."),
        ("~root/x", "field"),
        ("/a,ro,rw", "ro and rw"),
        ("/a,source=/b", "source twice"),
        ("target=/b", "no source"),
        ("/a,tagret=/b", "did you mean target"),
        ("type=volume,source=/a", "only bind"),
        ("/a,ro=maybe", "only bind mounts, with ro or rw"),
        ('"/a', "not closed"),
        ('"/a"b', "after a closing quote"),
        ('/a"b', "quote the whole field"),
        ("", "field ''"),
        ("/a\0b", "NUL"),
    ],
)
def test_refuses_a_mount(text, reason):
    with pytest.raises(UsageError) as caught:
        mount(text)
    assert reason in caught.value.message
    assert caught.value.message.startswith("--mount ")


def test_refuses_an_unknown_flag_with_the_nearest():
    with pytest.raises(UsageError, match="Unknown flag '--imgae' \\(did you mean --image"):
        parse_wrap_flags(["--imgae", "x"])
    with pytest.raises(UsageError, match=r"Unknown flag '-x'\."):
        parse_wrap_flags(["-x"])


def test_refuses_a_command_before_the_dashes():
    with pytest.raises(UsageError) as caught:
        parse_wrap_flags(["--rm", "claude", "-p"])
    assert "'claude' stands before --" in caught.value.message
    assert "after --" in caught.value.hint


@pytest.mark.parametrize("argv", [["--image"], ["--image", "--rm"], ["--podman-arg"]])
def test_refuses_a_missing_value(argv):
    with pytest.raises(UsageError, match=f"{argv[0]} needs a value"):
        parse_wrap_flags(argv)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--image="], "not empty"),
        (["--rm=yes"], "true or false"),
        (["--runtime", "cron"], "did you mean crun"),
        (["--user", "me"], "one of root, owner"),
        (["--network", "host"], "one of open, none"),
        (["--memory", "4"], "is 4 bytes, and must be at least 6m"),
        (["--memory", "4 g"], "512m"),
        (["--memory", "4gg"], "512m"),
        (["--memory", "²g"], "512m"),
        (["--memory", "9999999t"], "8 EiB"),
        (["--shm-size", "0"], "more than nothing"),
        (["--cpus", "nan"], "CPUs"),
        (["--cpus", "0"], "CPUs"),
        (["--cpus", "-1"], "CPUs"),
        (["--pids", "0"], "1 to 4194304"),
        (["--publish", "0"], "1 to 65535"),
        (["--publish", "70000"], "1 to 65535"),
        (["--publish", "0.0.0.0:80:80"], "loopback only"),
        (["--publish", "80/udp"], "TCP port"),
        (["--idle-stop", "30"], "with its unit"),
        (["--idle-stop", "1h30m"], "with its unit"),
        (["--idle-stop", "-1s"], "with its unit"),
        (["--hide", "../x"], "without .."),
        (["--hide", "."], "inside the project"),
        (["--device", "dri"], "/dev/NAME"),
        (["--device", "/dev/dri:x"], "/dev/NAME"),
        (["--share", "shh-agent"], "did you mean ssh-agent"),
        (["--share", "no-gh-x"], "must be one of"),
        (["--env", "=x"], "no variable"),
        (["--env", "A B=x"], "no variable"),
        (["--env", "HOME=/x"], "HOME, which cagewrap sets itself"),
        (["--env", "*"], "not everything"),
        (["--env", "A*B*"], "one *"),
        (["--secret", "!A"], "no variable"),
        (["--session", ""], "not empty"),
        (["--session", "  "], "not be empty"),
        (["--session", "a\nb"], "printable"),
        (["--session", "a\x1b[2J"], "printable"),
        (["--session", "a\u202eb"], "printable"),
        (["--session", "a\udcff"], "printable"),
        (["--session", "é" * 101], "200 bytes"),
    ],
)
def test_refuses_a_bad_value(argv, reason):
    with pytest.raises(UsageError) as caught:
        parse_wrap_flags(argv)
    assert argv[0].partition("=")[0] in caught.value.message
    if reason != "not empty" or argv[0] != "--session":
        assert reason in caught.value.message
    assert caught.value.hint


def test_refuses_krun_with_the_reason():
    with pytest.raises(UnsupportedError, match="host's kernel"):
        parse_wrap_flags(["--runtime", "krun"])


def test_refuses_a_secret_on_the_command_line_without_repeating_it():
    for argv in (
        ["--secret", "KEY=sk-planted"],
        ["--secret=KEY=sk-planted"],
        ["--env", "=sk-planted"],
    ):
        with pytest.raises(UsageError) as caught:
            parse_wrap_flags(argv)
        assert "sk-planted" not in caught.value.message + caught.value.hint
        assert caught.value.__cause__ is None


def test_long_values_are_cut_in_messages():
    with pytest.raises(UsageError) as caught:
        parse_wrap_flags(["--user", "x" * 100000])
    assert len(caught.value.message) < 300


def test_help_names_every_flag():
    text = wrap_help()
    assert all(row.flag in text for row in flags.FLAGS)
    assert max(map(len, text.splitlines())) <= 100


def test_the_table_has_no_doubles():
    for names in ([r.key for r in flags.SETTINGS], [r.flag for r in flags.FLAGS]):
        assert len(names) == len(set(names))


def test_parsing_loads_nothing_heavy():
    code = (
        "import sys; from cagewrap.flags import parse_wrap_flags; import cagewrap.config;"
        "parse_wrap_flags(['--rm', '--mount', '/a']);"
        "bad = {'argparse', 'click', 'tomllib', 'difflib', 'textwrap', 'fnmatch', 'json', 'csv',"
        " 'pathlib', 'subprocess', 'socket', 'logging', 'asyncio'};"
        "print(sorted(bad & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; sys.path[:] = " + repr(sys.path) + ";" + code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "[]"
