"""An S3 server for tests: moto's, in a process of its own, since pyarrow may wait for it while it
keeps the interpreter's lock."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

#: What the server takes is anything; executors are told these as well (``tests/spark/conftest``).
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "a-test",
    "AWS_SECRET_ACCESS_KEY": "a-test-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_NEEDED = "an S3 server is missing: pip install 'moto[server]'"


class S3Server:
    """The process, and a bucket for each test."""

    def __init__(self, directory: Path) -> None:
        """Start it; what it says goes into a file of the directory."""
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(_NEEDED)
        log = directory / "s3.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
                stdout=out, stderr=out,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (found := re.search(r"Running on (http://[\w.:]+)", log.read_text())):
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        self.endpoint = found[1]
        import boto3

        self.client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1",
            aws_access_key_id="a-test", aws_secret_access_key="a-test-secret",
        )  # fmt: skip

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def bucket(self) -> Bucket:
        """Make a bucket."""
        name = f"test-{uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return Bucket(self, name)


class Bucket:
    """What is in a bucket, as another client than ours sees it."""

    def __init__(self, server: S3Server, name: str) -> None:
        self._client: Any = server.client
        self.server, self.name = server, name

    def uri(self, path: str, *, scheme: str = "s3") -> str:
        """Return the URI of a path, with the server in it."""
        endpoint = quote(self.server.endpoint, safe="")
        return f"{scheme}://{self.name}/{path}?endpoint_override={endpoint}"

    def objects(self) -> list[str]:
        """Return the objects that hold something, ascending."""
        found = self._client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return sorted(each["Key"] for each in found if each["Size"])

    def read(self, key: str) -> bytes:
        return self._client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def write(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=key)

    def take_away(self) -> dict[str, bytes]:
        """Delete the bucket; return what was in it."""
        found = self._client.list_objects_v2(Bucket=self.name).get("Contents", [])
        contents = {each["Key"]: self.read(each["Key"]) for each in found}
        for key in contents:
            self.delete(key)
        self._client.delete_bucket(Bucket=self.name)
        return contents

    def bring_back(self, contents: dict[str, bytes]) -> None:
        """Make it again as it was."""
        self._client.create_bucket(Bucket=self.name)
        for key, data in contents.items():
            self.write(key, data)

    def uploads(self) -> list[str]:
        """Return the uploads that were begun and not ended."""
        found = self._client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return [each["Key"] for each in found]
