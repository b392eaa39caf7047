"""Forms of `mbarrier`."""

from __future__ import annotations

from .form import Choices, Form

_SCOPES = "cta cluster"
_LOCAL: dict[str, Choices] = {"order": "release relaxed", "scope": _SCOPES, "space": "shared::cta shared"}
_REMOTE: dict[str, Choices] = {"order": "release relaxed", "scope": _SCOPES}
_BYTES: dict[str, Choices] = {
    "order": {"relaxed": "relaxed"},
    "scope": _SCOPES,
    "space": "shared::cta shared::cluster shared",
}
_WAIT: dict[str, Choices] = {"order": "acquire relaxed", "scope": _SCOPES}

INIT = Form("mbarrier.init", "{.shared{::cta}}.b64 [pointer: shared], count: b32")
INVAL = Form("mbarrier.inval", "{.shared{::cta}}.b64 [pointer: shared]")
PENDING_COUNT = Form("mbarrier.pending_count", ".b64 count: out b32, state: b64")

_LOCAL_ARRIVAL = "{.<order>.<scope>}{.<space>}.b64 state: out b64, [pointer: shared]"
_REMOTE_ARRIVAL = "{.<order>.<scope>}.shared::cluster.b64 _, [pointer: shared]"
ARRIVE = Form("mbarrier.arrive", f"{_LOCAL_ARRIVAL}{{, count: b32}}", **_LOCAL)
ARRIVE_REMOTE = Form("mbarrier.arrive", f"{_REMOTE_ARRIVAL}{{, count: b32}}", **_REMOTE)
ARRIVE_EXPECT_TX = Form("mbarrier.arrive.expect_tx", f"{_LOCAL_ARRIVAL}, bytes: b32", **_LOCAL)
ARRIVE_EXPECT_TX_REMOTE = Form("mbarrier.arrive.expect_tx", f"{_REMOTE_ARRIVAL}, bytes: b32", **_REMOTE)
ARRIVE_NO_COMPLETE = Form(
    "mbarrier.arrive.noComplete", "{.release.cta}{.shared{::cta}}.b64 state: out b64, [pointer: shared], count: b32"
)
_CHANGE = "{.<order>.<scope>}{.<space>}.b64 [pointer: shared], bytes: b32"
EXPECT_TX = Form("mbarrier.expect_tx", _CHANGE, **_BYTES)
COMPLETE_TX = Form("mbarrier.complete_tx", _CHANGE, **_BYTES)

_STATE = "{.<order>.<scope>}{.shared{::cta}}.b64 complete: out pred, [pointer: shared], state: b64"
_PHASE = "{.<order>.<scope>}{.shared{::cta}}.b64 complete: out pred, [pointer: shared], phase: b32"
TEST_WAIT = Form("mbarrier.test_wait", _STATE, **_WAIT)
TEST_WAIT_PARITY = Form("mbarrier.test_wait.parity", _PHASE, **_WAIT)
TRY_WAIT = Form("mbarrier.try_wait", f"{_STATE}{{, limit: b32}}", **_WAIT)
TRY_WAIT_PARITY = Form("mbarrier.try_wait.parity", f"{_PHASE}{{, limit: b32}}", **_WAIT)
