"""One rule after another, each on its own, and all within a bound."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import aiohttp

from services.conformance.probe import Probe
from services.conformance.record import Record
from services.conformance.report import Options, Report, Result
from services.conformance.rule import Rule
from services.conformance.rules import (
    activity,
    card,
    channels,
    connection,
    deltas,
    files,
    frames,
    lifecycle,
    messages,
    whole,
)
from services.conformance.verdict import Failed, Skipped, at
from shared.agent.errors import AgentError
from shared.agent.http import fetch_card

RULES: Final[tuple[Rule, ...]] = (
    *card.RULES,
    *connection.RULES,
    *channels.RULES,
    *frames.RULES,
    *messages.RULES,
    *deltas.RULES,
    *activity.RULES,
    *files.RULES,
    *lifecycle.RULES,
    *whole.RULES,
)
_WAITS_IN_A_RULE: Final = 4
_FROM_OUTSIDE = (AgentError, TimeoutError, aiohttp.ClientError, OSError)
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError)


async def check(base_url: str, api_key: str, options: Options | None = None, rules: Sequence[Rule] = RULES) -> Report:
    """Runs the rules against the Connector at `base_url`.

    Args:
        base_url: of the card.
        api_key: the system key.
        options: see `Options`.
        rules: those to run; all by default.

    Returns:
        A result for each rule, in order. It raises for nothing that the Connector does.
    """
    options, base_url = options or Options(), base_url.rstrip("/")
    patience = aiohttp.ClientTimeout(total=options.timeout)
    async with aiohttp.ClientSession(timeout=patience) as http:
        try:
            found = await fetch_card(http, base_url)
        except _FROM_OUTSIDE as error:
            return _without_card(rules, str(error) or type(error).__name__)
        record = Record((api_key, *_secrets(found, options)))
        record.hear_text(str(found), "the Card")
        return await _run(Probe(base_url, api_key, options=options, http=http, card=found, record=record), rules)


async def _run(probe: Probe, rules: Sequence[Rule]) -> Report:
    deadline = time.monotonic() + probe.options.total
    results = []
    for rule in rules:
        left = deadline - time.monotonic()
        results.append(await _judge(rule, probe, min(left, probe.options.timeout * _WAITS_IN_A_RULE)))
    return Report(tuple(results))


async def _judge(rule: Rule, probe: Probe, seconds: float) -> Result:
    if seconds <= 0:
        return _result(rule, "fail", f"the whole run took more than {probe.options.total:g} s")
    try:
        async with asyncio.timeout(seconds):
            await rule.check(probe)
    except Skipped as reason:
        return _result(rule, "skip", str(reason))
    except Failed as failure:
        return _result(rule, "fail", str(failure))
    except _FROM_OUTSIDE as error:
        return _result(rule, "fail", str(error) or f"{type(error).__name__} after at most {seconds:g} s")
    except _MALFORMED as error:
        return _result(rule, "fail", f"an answer of an unexpected shape: {type(error).__name__}: {error}")
    return _result(rule, "pass", "")


def _result(rule: Rule, status: Any, detail: str) -> Result:
    return Result(rule.rule_id, rule.section, rule.title, status, detail)


def _without_card(rules: Sequence[Rule], detail: str) -> Report:
    first, *others = rules
    return Report((_result(first, "fail", detail), *(_result(rule, "skip", "there is no Card") for rule in others)))


def _secrets(found: dict[str, Any], options: Options) -> list[str]:
    flows = found.get("auth_flows")
    fields = [field for flow in flows if isinstance(flow, dict) for field in flow.get("fields") or []] if flows else []
    names = {at(field, "name") for field in fields if at(field, "secret") or at(field, "input_type") == "password"}
    return [value for name, value in options.auth_input.items() if name in names]
