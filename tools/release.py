"""Builds what can be published, and checks it: ``python -m tools.release [--address URL]``.

Wheel and sdist are built twice and must have the same bytes; twine looks at them.  The wheel is
installed into empty environments, alone and with each extra, where it prints its version, writes
its deployment files and imports the modules that need the extra.

What an environment with all extras holds is the bill of materials, in the format of CycloneDX.
Nothing is uploaded, and nothing is laid into ``dist/`` while pyproject.toml names no public address
of the project: ``--address`` writes that down, once, and does nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The modules that need an extra, which its environment must be able to import.
NEEDING = {
    "arrow": "quorumbook.client.reading.arrow quorumbook.streams.tier.part_file",
    "console": "quorumbook.admin.server",
    "delta": "deltalake",  # our part of it runs in Spark
    "demo": "quorumbook.cli.demo.flights",  # of the package only files are read
    "etcd": "quorumbook.metadata.etcd.client",
    "iceberg": "pyiceberg.catalog.sql",  # likewise
    "kerberos": "quorumbook.auth.kerberos",
    "oidc": "quorumbook.admin.access.oidc",
    "otel": "quorumbook.otel.process quorumbook.otel.spans quorumbook.otel.metrics",
    "rocksdb": "quorumbook.storage.adoption.rocksdb",
    "schema": "quorumbook.streams.schemas.avro_format quorumbook.streams.schemas.json_checks re2",
    "spark": "quorumbook.spark.functions pyspark_quorumbook",
}
#: A table of the scripts of others that are kept in the package.
SCRIPTS = ROOT / "src" / "quorumbook" / "admin" / "console" / "static" / "README.md"


def build(target: Path) -> dict[str, str]:
    """Build what is committed; return the SHA-256 of wheel and sdist by name."""
    if subprocess.run(("git", "diff", "--quiet", "HEAD"), cwd=ROOT, check=False).returncode:
        sys.exit("Files differ from what is committed: commit them, a release is built of that.")
    return packed(ROOT, target, epoch=run("git", "log", "-1", "--format=%ct").strip())


def packed(source: Path, target: Path, *, epoch: str) -> dict[str, str]:
    """Build wheel and sdist of a tree as of a time; return their SHA-256 by name."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target)],
        cwd=source, env=os.environ | {"SOURCE_DATE_EPOCH": epoch}, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.iterdir())
    }


def checked(files: Sequence[Path]) -> None:
    """Have twine look at wheel and sdist as the package index would."""
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))


def version() -> str:
    """Return the version, which stands in one place."""
    text = (ROOT / "src" / "quorumbook" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def run(*words: str) -> str:
    """Run a command in the repository and return what it prints."""
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def extras() -> list[str]:
    """Return the extras that can be installed here; Kerberos has to be built."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    has_kerberos = shutil.which("krb5-config") is not None
    names = [x for x in project["optional-dependencies"] if x != "all"]
    return [x for x in names if x != "kerberos" or has_kerberos]


def try_out(built: Path, directory: Path, *names: str) -> str:
    """Install the wheel with some extras into an empty environment; return what version it is."""
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "--quiet", "--python", sys.executable, str(directory))
    binaries = directory / "bin"
    (wheel,) = built.glob("*.whl")
    wanted = f"quorumbook[{','.join(names)}] @ {wheel.as_uri()}"
    run(*uv, "pip", "install", "--quiet", "--python", str(directory), wanted)
    run(*uv, "pip", "check", "--python", str(directory))
    needing = " ".join(NEEDING[name] for name in names).split()
    run(str(binaries / "python"), "-c", "import quorumbook, " + ", ".join(["sys", *needing]))
    run(str(binaries / "quorumbook"), "deploy", "export", str(directory / "deploy"))
    assert (directory / "deploy" / "monitoring" / "board.json").is_file()
    return run(str(binaries / "quorumbook"), "--version").strip()


def bill(environment: Path, file: Path) -> int:
    """Write what an environment holds, and the scripts in our package; return how many."""
    run(
        sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible",
        "--short-PURLs", "--mc-type", "library", "--pyproject", "pyproject.toml",
        "--output-file", str(file), str(environment / "bin" / "python"),
    )  # fmt: skip
    held = json.loads(file.read_text(encoding="utf-8"))
    for name, version, licence in scripts():
        held["components"].append(
            {
                "type": "library",
                "bom-ref": f"{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:npm/{name}@{version}",
                "licenses": [{"license": {"name": licence}}],
            }
        )
    file.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
    return len(held["components"])


def scripts() -> list[tuple[str, str, str]]:
    """Return name, version and licence of each script of others in the package."""
    rows = [line.split("|") for line in SCRIPTS.read_text(encoding="utf-8").splitlines()]
    return [
        (row[2].split("`")[1], row[3].strip(), row[4].split(",")[0].strip())
        for row in rows
        if len(row) > 4 and "npm package" in row[2]
    ]


def addresses(pyproject: str) -> dict[str, str]:
    """Return the project's public addresses by name, as pyproject.toml has them."""
    found: dict[str, str] = tomllib.loads(pyproject)["project"].get("urls", {})
    return found


def with_address(pyproject: str, address: str) -> str:
    """Return pyproject.toml with the public address of the project's repository.

    Raises:
        ValueError: There is one already, or this is no public address.
    """
    if addresses(pyproject):
        raise ValueError("pyproject.toml has [project.urls] already: change them there")
    address = address.rstrip("/")
    if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)*\.[a-z]{2,}(/[\w.-]+)+", address):
        raise ValueError(f"{address} is not the https:// address of a public repository")
    table = "".join(
        f'{name} = "{address}{path}"\n'
        for name, path in (("Homepage", ""), ("Repository", ""), ("Issues", "/issues"))
    )
    before, scripts, after = pyproject.partition("[project.scripts]")
    assert scripts
    return f"{before}[project.urls]\n{table}\n{scripts}{after}"


def name_address(address: str) -> None:
    """Write the project's public address into pyproject.toml."""
    file = ROOT / "pyproject.toml"
    try:
        text = with_address(file.read_text(encoding="utf-8"), address)
    except ValueError as error:
        sys.exit(str(error))
    file.write_text(text, encoding="utf-8")
    print("pyproject.toml has [project.urls]: look at them, commit, and run `make release` again.")


def main() -> None:
    """Build, compare, check, and say what is left; or write down the project's address."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--address", metavar="URL", help="the repository's public address")
    if (address := options.parse_args().address) is not None:
        name_address(address)
    else:
        build_and_check()


def build_and_check() -> None:
    """Build, compare, check, and say what is left.

    Without an address of the project it stops before ``dist/``: what cannot be published is not
    laid where it would be taken from.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        built = directory / "first"
        first, second = build(built), build(directory / "second")
        if first != second:
            sys.exit(f"two builds differ:\n{first}\n{second}")
        files = sorted(built.iterdir())
        checked(files)
        for extra in ("", *extras()):
            tried = try_out(built, directory / f"with {extra}", *([extra] if extra else []))
            print(f"{tried} runs in an empty environment{extra and f' with [{extra}]'}", flush=True)
        try_out(built, directory / "everything", *extras())
        if not addresses((ROOT / "pyproject.toml").read_text(encoding="utf-8")):
            sys.exit(
                "All of this is well, but pyproject.toml names no public address of the project, "
                "so nothing is in dist/.\n"
                "Run `make release-address ADDRESS=https://...` once, with the repository's."
            )
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        materials = dist / "bill-of-materials.cdx.json"
        count = bill(directory / "everything", materials)
        for path in files:
            shutil.copy(path, dist)
    for file, digest in first.items():
        print(f"{digest}  dist/{file}")
    print(f"{tried}: built twice with the same bytes, checked and tried out.")
    print(f"{materials.relative_to(ROOT)} names {count} packages and scripts.")
    print(
        "Left to do: `pip-audit --require-hashes --disable-pip -r requirements.lock`, git tag,\n"
        "and `python -m twine upload dist/*.whl dist/*.tar.gz`. Nothing was uploaded."
    )


if __name__ == "__main__":
    main()
