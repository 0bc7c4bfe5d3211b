"""``quorumbook deploy``: the files that run a cluster for good, out of the package."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.errors import ConfigError


def deploy_files() -> Path:
    """Return where the files are: in the package, or beside it in a clone.

    Raises:
        ConfigError: they are in neither place.
    """
    package = Path(__file__).parents[2]
    for place in (package / "deploy", package.parents[1] / "deploy"):
        if (place / "systemd").is_dir():
            return place
    raise ConfigError("the package was installed without its deployment files; install it again")


@click.group(cls=Commands)
def deploy() -> None:
    """Write the files that run a cluster for good."""


@deploy.command(cls=ClusterCommand, has_metadata=False)
@click.argument("directory", metavar="DIR")
@click.pass_obj
def export(call: Call, directory: str) -> None:
    """Write systemd units, compose, Kubernetes, alerts and a Grafana board into DIR.

    Example: quorumbook deploy export deploy
    """
    source = deploy_files()
    if os.path.isdir(directory) and os.listdir(directory):
        raise ConfigError(f"{directory} is not empty; name a new directory")
    shutil.copytree(source, directory, dirs_exist_ok=True)
    written = sorted(path for path in Path(directory).rglob("*") if path.is_file())
    call.output.rows([{"file": str(path)} for path in written], ["file"])
