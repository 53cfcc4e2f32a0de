"""The program that ./install writes: right for any path, and every word reaches cagewrap."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cagewrap
from cagewrap.launcher import launcher_text

WORDS = ["", "a b", "--", "-x", "*", "\n", "ü"]
ENTRY = """
import sys
def main():
    print(ascii(sys.argv[1:]), sys.flags.isolated, sys.flags.no_site)
"""


@pytest.mark.parametrize(
    "name", ["plain", "with space", "quote'd", "a' 'b", 'two"s', "ünï", "x" * 200]
)
def test_starts_from_any_directory(tmp_path: Path, name: str) -> None:
    package = tmp_path / name / "site" / "cagewrap"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "entry.py").write_text(ENTRY)
    python = tmp_path / name / "python3"
    python.symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    launcher = tmp_path / name / "cagewrap"
    launcher.write_text(launcher_text(str(python), str(package)))
    launcher.chmod(0o755)
    done = subprocess.run([launcher, *WORDS], capture_output=True, text=True, check=True)
    assert done.stdout == f"{WORDS!a} 1 1\n"


def test_short_path_needs_no_shell(tmp_path: Path) -> None:
    assert launcher_text("/v/bin/python3", "/v/lib/cagewrap") == (
        "#!/v/bin/python3 -IS\n"
        "import sys\n"
        "sys.path.insert(0, '/v/lib')\n"
        "from cagewrap.entry import main\n"
        "main()\n"
    )


def test_written_launcher_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "cagewrap"
    target.write_text("old")
    source = Path(cagewrap.__file__).parent.parent
    env = {"PYTHONPATH": str(source)}
    subprocess.run([sys.executable, "-m", "cagewrap.launcher", target], env=env, check=True)
    assert os.access(target, os.X_OK)
    assert [path.name for path in tmp_path.iterdir()] == ["cagewrap"]
    assert str(source) in target.read_text()
