"""What the tests of TLS and authentication share."""

from __future__ import annotations

from typing import Any

import pytest

from doubles.certificates import Authority, Issued


@pytest.fixture
def ca(tmp_path: Any) -> Authority:
    """Return a CA with its files in the test's directory."""
    return Authority(tmp_path)


@pytest.fixture
def good(ca: Authority) -> Issued:
    """Return a certificate for loopback that serves both sides."""
    return ca.issue("good", ips=["127.0.0.1"], dns=["localhost"])
