"""Brings a Python that this machine lacks from Debian's unstable packages, beside the system's.

``tools/pythons.py --fetch`` asks for it, on a Debian or one of its kin.  The packages and all that
they need, also their C library, are unpacked under ``build/interpreters`` and never installed: apt
works on lists and a state of its own, and ``patchelf`` has the interpreter use the libraries beside
it.  Wheels run on it, since a newer C library carries what was built for an older one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

HOME = Path(__file__).parents[1] / "build" / "interpreters"
_SOURCES = Path("/etc/apt")
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR = re.compile(r"https?://\S+/debian/?(?=\s|$)")


def fetched(minor: int, home: Path = HOME) -> Path:
    """Return a Python 3.``minor`` under ``home``.

    Raises:
        OSError: Something that this takes is not on the machine, or no mirror of Debian is known.
        subprocess.CalledProcessError: A command failed, such as a download.
    """
    place = home / f"3.{minor}"
    shutil.rmtree(place, ignore_errors=True)
    tools = {name: shutil.which(name) for name in ("apt-get", "dpkg-deb", "patchelf")}
    if lacking := [name for name, path in tools.items() if path is None]:
        raise OSError(f"{', '.join(lacking)} is not on this machine")
    packages = downloaded(f"python3.{minor}", place / "apt", mirror(_SOURCES))
    for package in packages:
        _run("dpkg-deb", "--extract", str(package), str(place))
    shutil.rmtree(place / "apt")
    python = place / "usr" / "bin" / f"python3.{minor}"
    (loader,) = (place / "usr" / "lib").glob("*/ld-linux-*.so.*")
    _run(
        "patchelf", "--set-interpreter", str(loader), "--force-rpath",
        "--set-rpath", str(loader.parent), str(python),
    )  # fmt: skip
    return python


def mirror(directory: Path) -> str:
    """Return the address of the Debian mirror that this machine's apt uses."""
    for path in (directory / "sources.list", *sorted(directory.glob("sources.list.d/*"))):
        if path.is_file() and (found := _MIRROR.search(path.read_text(encoding="utf-8"))):
            return found[0]
    raise OSError(f"no mirror of Debian is named in {directory}")


def downloaded(name: str, directory: Path, address: str) -> list[Path]:
    """Download a package of Debian unstable and all that it needs; return the files."""
    archives = directory / "archives"
    for each in (archives / "partial", directory / "lists" / "partial"):
        each.mkdir(parents=True)
    (directory / "status").touch()  # nothing is installed, so apt names all that is needed
    (directory / "sources.list").write_text(f"deb [signed-by={_KEYS}] {address} sid main\n")
    options = {
        "Dir::Etc::sourcelist": directory / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": directory / "lists",
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory,
        "APT::Install-Recommends": "0",
        "APT::Sandbox::User": "root",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *words, "--quiet", "update")
    _run("apt-get", *words, "--quiet", "--yes", "--download-only", "install", name)
    return sorted(archives.glob("*.deb"))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
