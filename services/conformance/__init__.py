"""Checks any Connector Server against IM v2 and the common protocol, from the outside."""

from services.conformance.report import Options, Report, Result, Status
from services.conformance.runner import RULES, check

__all__ = ["RULES", "Options", "Report", "Result", "Status", "check"]
