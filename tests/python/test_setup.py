"""tools/setup.sh on machines that lack something, played by commands put before the real ones in PATH."""

import os
import re
import shutil


def machine(folder, root, packages, **commands):
    """A copy of tools/ that wants `packages`, and an environment where `commands` are scripts."""
    shutil.copytree(root / "tools", folder / "tools")
    (folder / "tools/packages.txt").write_text("".join(f"{package}\n" for package in packages))
    (folder / "bin").mkdir()
    for name, text in commands.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    return dict(os.environ, PATH=f"{folder / 'bin'}:{os.environ['PATH']}")


def test_without_root_it_prints_the_line_to_run(run, root, tmp_path):
    environment = machine(tmp_path, root, ["bash", "no-such-package", "nor-this"], id="echo 1000")
    result = run(tmp_path / "tools/setup.sh", env=environment)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].strip() == "sudo apt-get install -y no-such-package nor-this"
    assert not (tmp_path / ".venv").exists()


def test_a_failing_apt_is_shown(run, root, tmp_path):
    commands = {"id": "echo 0", "apt-get": "echo E: no space left; exit 100"}
    environment = machine(tmp_path, root, ["no-such-package"], **commands)
    result = run(tmp_path / "tools/setup.sh", env=environment)
    assert result.returncode == 1
    assert "E: no space left" in result.stderr


def test_when_nothing_is_missing_it_is_silent_and_starts_no_installer(run, root, tmp_path):
    refuse = {name: "echo called >&2; exit 9" for name in ("apt-get", "pip", "curl", "wget")}
    environment = machine(tmp_path, root, ["bash"], **refuse)
    (tmp_path / ".venv").symlink_to(root / ".venv")
    result = run(tmp_path / "tools/setup.sh", env=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_torch_built_for_cuda_does_not_stay(run, root, tmp_path):
    """pip says that it installs, and torch has CUDA's library: three tries, then the advice."""
    environment = machine(tmp_path, root, ["bash"])
    site = tmp_path / ".venv/lib/python3.11/site-packages"
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch/lib/libtorch_cuda.so").touch()
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    log = tmp_path / "log"
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n'
        'case "$*" in\n'
        '  "- "*) echo; echo torch ;;\n'
        "  *m.version*) exit 1 ;;\n"
        "esac\n"
    )
    python.chmod(0o755)
    result = run(tmp_path / "tools/setup.sh", env=environment)
    assert result.returncode == 1
    assert "no CPU build of torch" in result.stderr
    words = log.read_text()
    assert words.count("--no-deps") == words.count("pip uninstall") == 3


def test_what_it_does_is_said_and_how_long_it_took(run, root, tmp_path):
    environment = machine(tmp_path, root, ["no-such-package"], **{"id": "echo 0", "apt-get": "sleep 1"})
    (tmp_path / ".venv").symlink_to(root / ".venv")
    result = run(tmp_path / "tools/setup.sh", env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    said = result.stdout.splitlines()
    assert said[:2] == [
        "setup: Debian's no-such-package",
        "setup: installing 1 Debian packages: a minute usually",
    ]
    assert re.fullmatch(r"setup: installing 1 Debian packages: [1-9] s", said[2])


def test_the_demo_installs_only_what_the_command_needs(run, root, tmp_path):
    environment = machine(tmp_path, root, ["bash"])
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    log = tmp_path / "log"
    # Says that all packages that it is asked for are missing; and what pip is told.
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '  "- "*) [ "$3" = --demo ] && echo highspy || echo highspy pytest; echo ;;\n'
        f'  *) echo "$@" >> {log} ;;\nesac\n'
    )
    python.chmod(0o755)
    assert run(tmp_path / "tools/setup.sh", "--demo", env=environment).returncode == 0
    assert run(tmp_path / "tools/setup.sh", env=environment).returncode == 0
    demo, whole = [line for line in log.read_text().splitlines() if "pip install" in line]
    assert re.search(r" highspy==[\d.]+$", demo)
    assert re.search(r" highspy==[\d.]+ pytest==[\d.]+$", whole)
