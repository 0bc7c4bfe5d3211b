"""Where the cluster is and how its clients are made, as the options say it; no secret in it.

It goes along with what Spark pickles, so a password is only named: by a file or a variable that
every executor has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from quorumbook.client.options import ClientOptions
from quorumbook.config import Kind, load
from quorumbook.config.made import client_options
from quorumbook.env.shown import shown
from quorumbook.errors import ConfigError
from quorumbook.spark.options import SourceOptions, option
from quorumbook.streams.metadata.address import DEFAULT_PATH, parse_address

CONNECTION_OPTIONS = (
    option(
        "metadataServiceUri", Kind.TEXT, "",
        "The cluster's metadata, or a namespace's address; needed.",
    ),
    option(
        "namespace", Kind.TEXT, "",
        f"Where the streams lie in the metadata tree; `{DEFAULT_PATH}` unless the URI says it.",
    ),
    option(
        "configFile", Kind.TEXT, "",
        "A quorumbook.toml on the driver and on every executor: TLS, authentication, placement.",
    ),
    option("passwordFile", Kind.TEXT, "", "A file with the ledgers' password, on every executor."),
    option(
        "passwordEnv", Kind.TEXT, "",
        "An environment variable with the ledgers' password, on every executor.",
    ),
    option(
        "digestType", Kind.TEXT, "",
        "For ledgers of old writers whose metadata does not say it.",
        choices=("", "crc32c", "crc32", "hmac", "dummy"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What a client is made with; equal ones share a client."""

    metadata_uri: str
    namespace_path: str
    config_file: str = ""
    passed_on: tuple[str, ...] = field(default=(), repr=False)
    password_file: str = ""
    password_env: str = ""
    digest_type: str = ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Connection:
        """Return what ``as_json`` was made of."""
        return cls(**{**values, "passed_on": tuple(values["passed_on"])})

    def as_json(self) -> dict[str, Any]:
        """Return what goes to a task among its arguments."""
        return asdict(self)

    @classmethod
    def of(cls, options: SourceOptions) -> Connection:
        """Read the options of a connection.

        Raises:
            ConfigError: the cluster is not named, or they contradict each other.
        """
        uri = options.text("metadataServiceUri")
        if not uri:
            raise ConfigError(
                "option metadataServiceUri is missing: where the cluster's metadata is, such as "
                "zk://h1:2181,h2:2181/ledgers or sqlite:////data/metadata.db"
            )
        address = parse_address(uri)
        if address.is_peer_form:
            path, metadata_uri = address.path, uri
        else:
            path, metadata_uri = options.text("namespace") or address.path, address.metadata_uri
        if metadata_uri.startswith("memory:"):
            raise ConfigError(f"metadataServiceUri {shown(uri)}: executors are other processes")
        if options.text("passwordFile") and options.text("passwordEnv"):
            raise ConfigError("passwordFile and passwordEnv are both given; one is enough")
        return cls(
            metadata_uri=metadata_uri,
            namespace_path=path,
            config_file=options.text("configFile"),
            passed_on=options.passed_on,
            password_file=options.text("passwordFile"),
            password_env=options.text("passwordEnv"),
            digest_type=options.text("digestType"),
        )

    @property
    def namespace_address(self) -> str:
        """The address of the namespace of streams."""
        if self.metadata_uri.startswith("distributedlog"):
            return self.metadata_uri
        return f"{self.metadata_uri}#{self.namespace_path}"

    def client_options(self) -> ClientOptions:
        """Return what a client is made with.

        Raises:
            ConfigError: the file or an option is none.
        """
        settings = load(
            file=self.config_file or None, overrides=self.passed_on, foreign="an option of Spark"
        )
        return client_options(settings)

    def password(self) -> bytes:
        """Return the ledgers' password.

        Raises:
            ConfigError: it is not where the options say.
        """
        if self.password_env:
            value = os.environ.get(self.password_env)
            if value is None:
                raise ConfigError(
                    f"passwordEnv: there is no variable {self.password_env} here; executors get "
                    f"one by spark.executorEnv.{self.password_env}"
                )
            return value.encode()
        if not self.password_file:
            return b""
        try:
            with open(self.password_file, "rb") as file:
                return file.read().rstrip(b"\r\n")
        except OSError as error:
            raise ConfigError(f"passwordFile {self.password_file}: {error.strerror}") from error
