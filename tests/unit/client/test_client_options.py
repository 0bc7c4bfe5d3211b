"""What one ledger's writer has otherwise than its client."""

from __future__ import annotations

from typing import Any

import pytest

from quorumbook.client.options import ClientOptions, with_keywords
from quorumbook.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ensemble": 3}, "there is no option ensemble; did you mean ensemble_size?"),
        ({"max_pending_entry": 3}, "; did you mean max_pending_entries?"),
        ({"colour": 3}, "there is no option colour$"),
        ({"session_timeout_s": 3}, "is an option of connect, not of one ledger's writer"),
    ],
)
def test_a_keyword_that_is_none_of_a_writers_names_the_nearest(given: Any, told: str):
    with pytest.raises(ConfigError, match=told):
        with_keywords(ClientOptions(), given)
