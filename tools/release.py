"""Builds what can be published, and checks it: ``python -m tools.release``.

Wheel and sdist are built twice and must have the same bytes; twine looks at them, and the wheel is
installed into an empty environment, where it prints its version and writes its deployment files.
Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(target: Path) -> dict[str, str]:
    """Build wheel and sdist, and return their SHA-256 by name."""
    run("git", "diff", "--quiet", "HEAD")
    time = run("git", "log", "-1", "--format=%ct").strip()
    environment = os.environ | {"SOURCE_DATE_EPOCH": time}
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target)],
        cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.iterdir())
    }


def run(*words: str) -> str:
    """Run a command in the repository and return what it prints."""
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def try_out(wheel: Path, directory: Path) -> str:
    """Install a wheel into an empty environment and return the version that it prints."""
    run(sys.executable, "-m", "venv", str(directory))
    binaries = directory / "bin"
    run(str(binaries / "pip"), "install", "--quiet", str(wheel))
    run(str(binaries / "quorumbook"), "deploy", "export", str(directory / "deploy"))
    assert (directory / "deploy" / "monitoring" / "board.json").is_file()
    return run(str(binaries / "quorumbook"), "--version").strip()


def main() -> None:
    """Build, compare, check, and say what is left."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        first, second = build(directory / "first"), build(directory / "second")
        if first != second:
            sys.exit(f"two builds differ:\n{first}\n{second}")
        files = sorted((directory / "first").iterdir())
        run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
        wheel = next(path for path in files if path.suffix == ".whl")
        version = try_out(wheel, directory / "empty")
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for path in files:
            shutil.copy(path, dist)
    for file, digest in first.items():
        print(f"{digest}  dist/{file}")
    print(f"{version}: built twice with the same bytes, checked and tried out.")
    print("Left to do: git tag, and `python -m twine upload dist/*`. Nothing was uploaded.")


if __name__ == "__main__":
    main()
