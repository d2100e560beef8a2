"""Sessions of tokens; see `test_access.py` for what they may do."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.auth import Authenticator, Caller, UnauthorizedError, create_token, revoke_token
from serving.store import Store


def test_a_token_that_is_renewed_during_its_sign_in_opens_no_session(tmp_path: Path) -> None:
    """Its session would have the scopes of the new one."""
    store = Store(f"sqlite:///{tmp_path}/store.db")

    class Renewing(Authenticator):
        def look_up(self, key: str, is_session: bool = False) -> Caller:
            found = super().look_up(key, is_session)
            revoke_token(store, "ops")
            create_token(store, "ops", ["admin"])
            return found

    earlier = create_token(store, "ops", ["read"])
    with pytest.raises(UnauthorizedError):
        Renewing(store, 300.0).open_session(earlier)
