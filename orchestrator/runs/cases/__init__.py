"""Runs kept as cases: what a case holds, how it is made of a run, played again, and judged."""

from orchestrator.runs.cases.body import CaseBody, Expectation, load_body
from orchestrator.runs.cases.judging import CaseResult
from orchestrator.runs.cases.limits import MAXIMUM_LINE_BYTES
from orchestrator.runs.cases.lines import CaseLine, line_of, read_line, wrong_name
from orchestrator.runs.cases.making import CaseMaker, case_row
from orchestrator.runs.cases.suite import Change, LivePlayer, ReplayPlayer, in_turn

__all__ = [
    "MAXIMUM_LINE_BYTES",
    "CaseBody",
    "CaseLine",
    "CaseMaker",
    "CaseResult",
    "Change",
    "Expectation",
    "LivePlayer",
    "ReplayPlayer",
    "case_row",
    "in_turn",
    "line_of",
    "load_body",
    "read_line",
    "wrong_name",
]
