from services.conformance import RULES, Options, check
from tests.support.scripted_connector import API_KEY, ScriptedConnector

SIGN_IN = {"token": "a-token-of-the-target"}


async def test_a_connector_written_from_the_spec_passes_every_rule() -> None:
    connector = ScriptedConnector()
    async with connector.serve() as url:
        options = Options(auth_input=SIGN_IN, timeout=2, upload_limit=0, shown=connector.shown, speak=connector.speak)
        report = await check(url, API_KEY, options)
    assert report.failed == ()
    assert {one.rule_id for one in report.skipped} == {"upload.too_large", "whole.files"}
    assert len(report.as_rows()) == len(RULES)


async def test_without_a_way_to_sign_in_delivery_rules_are_skipped_and_never_passed() -> None:
    connector = ScriptedConnector()
    async with connector.serve() as url:
        report = await check(url, API_KEY, Options(timeout=2))
    skipped = {one.rule_id: one.detail for one in report.skipped}
    assert report.failed == ()
    assert skipped["message.accepted"] == "signing in needs token"
    assert {"delta.gap", "message.conflict", "file.unknown_ref", "reconnect.duplicate"} <= set(skipped)


async def test_without_a_card_nothing_passes() -> None:
    connector = ScriptedConnector()
    async with connector.serve() as url:
        report = await check(url + "/elsewhere", API_KEY, Options(timeout=2))
    assert report.passed == ()
    assert [one.rule_id for one in report.failed] == ["card.schema"]


async def test_a_run_is_bounded() -> None:
    connector = ScriptedConnector()
    async with connector.serve() as url:
        report = await check(url, API_KEY, Options(timeout=2, total=0))
    assert len(report.failed) == len(RULES)


def test_rule_ids_are_unique_and_options_hide_their_secrets() -> None:
    assert len({rule.rule_id for rule in RULES}) == len(RULES)
    assert "a-token" not in repr(Options(auth_input=SIGN_IN))
