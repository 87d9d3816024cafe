"""Runs kept as cases: what a case holds, how it is made of a run, played again, and judged."""

from orchestrator.runs.cases.body import CaseBody, CaseLine, Expectation, line_of, load_body, read_line, wrong_name
from orchestrator.runs.cases.judging import CaseResult
from orchestrator.runs.cases.making import CaseMaker, case_row
from orchestrator.runs.cases.suite import Change, LivePlayer, in_turn, replayed

__all__ = [
    "CaseBody",
    "CaseLine",
    "CaseMaker",
    "CaseResult",
    "Change",
    "Expectation",
    "LivePlayer",
    "case_row",
    "in_turn",
    "line_of",
    "load_body",
    "read_line",
    "replayed",
    "wrong_name",
]
