"""Task sets, files of results, and the numbers made of them; the project's own task set among them."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from codemend.orchestrator.v1 import runs_pb2
from rich.console import Console

from orchestrator.cli.errors import UsageFault
from orchestrator.cli.eval_loop import LoopSettings
from orchestrator.cli.eval_report import plot, summarise, summary_table
from orchestrator.cli.eval_results import AttemptRecord, Record, ResultFile, record_of
from orchestrator.cli.eval_tasks import choose_tasks, load_tasks

OWN_TASKS = Path(__file__).parents[1] / "data" / "tasks.jsonl"
ROW = {
    "id": "a",
    "source": "here",
    "license": "Apache-2.0",
    "prompt": "do it",
    "tests": {"test_a.py": "def test(): pass"},
    "reference": {"solution.py": ""},
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def record(name: str, *passed: bool, outcome: str = "", **fields) -> Record:
    attempts = [AttemptRecord(number, "draft", one, 0, 1, "", "", 0.0) for number, one in enumerate(passed, start=1)]
    return Record(name, "f", outcome or ("PASSED" if any(passed) else "FAILED"), attempts=attempts, **fields)


def test_own_task_set_fits_the_schema_and_the_project():
    tasks = load_tasks(OWN_TASKS)
    assert len(tasks) >= 24
    assert {(task.source, task.license) for task in tasks} == {("codemend", "Apache-2.0")}
    assert sum(task.notes.startswith("hard") for task in tasks) >= 3
    assert sum(task.notes.startswith("demo") for task in tasks) >= 3
    assert sum(bool(task.buggy) for task in tasks) >= 3
    for task in tasks:
        assert task.entry_point in "".join(task.reference.values()), task.id
        assert 3 <= sum(text.count("\ndef test_") for text in task.tests.values()) <= 8, task.id
        for path, text in {**task.files, **task.tests, **task.reference, **task.buggy}.items():
            compile(text, f"{task.id}/{path}", "exec")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**ROW, "prompt": ""}, "line 2: prompt: "),
        ({**ROW, "id": 7}, "line 2: id: "),
        ({key: value for key, value in ROW.items() if key != "reference"}, "line 2: reference: "),
        ({**ROW, "tests": {}}, "line 2: tests: "),
        ({**ROW, "tests": {"a.py": 1}}, r"line 2: tests\.a\.py: "),
        ({**ROW, "files": {"/etc/x": ""}}, "line 2: files: .*is no relative path"),
        ({**ROW, "more": ""}, "line 2: more: "),
        ("not json", "line 2: Invalid JSON"),
        ("[]", "line 2: "),
    ],
)
def test_bad_rows_are_told_with_line_and_field(tmp_path, row, said):
    with pytest.raises(UsageFault, match=said):
        load_tasks(write(tmp_path / "set", {**ROW, "id": "other"}, row))


def test_all_bad_rows_are_told_up_to_a_bound(tmp_path):
    with pytest.raises(UsageFault) as told:
        load_tasks(write(tmp_path / "set", *["{"] * 30))
    assert str(told.value).count("  line ") == 20
    assert str(told.value).endswith("and 10 more")


def test_empty_sets_and_missing_files(tmp_path):
    with pytest.raises(UsageFault, match="holds no task"):
        load_tasks(write(tmp_path / "set", ""))
    with pytest.raises(UsageFault, match="cannot read"):
        load_tasks(tmp_path / "missing")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UsageFault, match="byte 0 cannot be decoded"):
        load_tasks(tmp_path / "bytes")


def test_line_separators_inside_texts_do_not_end_a_row(tmp_path):
    (tmp_path / "set").write_text(json.dumps({**ROW, "prompt": "a\u2028b\x85c"}, ensure_ascii=False), encoding="utf-8")
    assert load_tasks(tmp_path / "set")[0].prompt == "a\u2028b\x85c"


def test_choice_of_tasks(tmp_path):
    tasks = load_tasks(write(tmp_path / "set", *({**ROW, "id": name} for name in "abc")))
    assert [task.id for task in choose_tasks(tasks, ids=[], limit=2)] == ["a", "b"]
    assert [task.id for task in choose_tasks(tasks, ids=["c", "a", "c"], limit=None)] == ["c", "a"]
    with pytest.raises(UsageFault, match="--ids: no task has the id 'x', 'y'"):
        choose_tasks(tasks, ids=["a", "x", "y"], limit=None)


def test_fingerprint_changes_with_whatever_a_result_depends_on(tmp_path):
    task, other = load_tasks(write(tmp_path / "set", ROW, {**ROW, "id": "b", "prompt": "do that"}))
    base = LoopSettings("m", runs_pb2.RunOptions(max_attempts=4), hide_tests=False)
    variants = [
        base.fingerprint(other),
        LoopSettings("n", base.options, hide_tests=False).fingerprint(task),
        LoopSettings("m", base.options, hide_tests=True).fingerprint(task),
        LoopSettings("m", runs_pb2.RunOptions(max_attempts=5), hide_tests=False).fingerprint(task),
        LoopSettings("m", runs_pb2.RunOptions(max_attempts=4, candidates=2), hide_tests=False).fingerprint(task),
    ]
    variants.append(LoopSettings("m", base.options, hide_tests=False, server={"temperature": 1}).fingerprint(task))
    assert len({base.fingerprint(task), *variants}) == 7
    assert base.fingerprint(task.model_copy(update={"notes": "n", "id": "z"})) == base.fingerprint(task)


def test_results_are_found_again_errors_are_not(tmp_path):
    path = tmp_path / "new" / "r.jsonl"
    with ResultFile(path) as results:
        results.append(record("a", False, True))
        results.append(record("b", outcome="ERROR", reason="lone \ud800 surrogate"))
    with ResultFile(path) as results:
        assert results.done("a", "f") == record("a", False, True)
        assert results.done("a", "g") is None
        assert results.done("b", "f") is None
        results.append(record("b", True))
    with ResultFile(path) as results:
        assert results.done("b", "f") == record("b", True)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_torn_last_line_is_cut_off(tmp_path, cut):
    path = tmp_path / "r.jsonl"
    for name in "ab":
        with ResultFile(path) as results:
            results.append(record(name, True))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + cut])
    with ResultFile(path) as results:
        assert results.done("a", "f") is not None
        results.append(record("b", True))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"id": 5}\n', b"\n"])
def test_other_files_are_refused_and_left_as_they_are(tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(UsageFault, match="is no file of results: line 1"):
        ResultFile(path)
    assert path.read_bytes() == content


def test_second_evaluation_into_one_file_is_refused(tmp_path):
    with ResultFile(tmp_path / "r"), pytest.raises(UsageFault, match="another evaluation writes"):
        ResultFile(tmp_path / "r")
    with ResultFile(tmp_path / "r"):
        pass


def test_record_of_a_run_names_the_delivered_code():
    result = runs_pb2.RunResult(outcome=runs_pb2.RUN_OUTCOME_STUCK, reason="in circles", delivered_attempt=2)
    for number in (1, 2, 3):
        result.attempts.add(number=number, code_hash=f"h{number}", strategy="repair")
    result.usage.input_tokens = 5
    made = record_of(runs_pb2.Run(run_id="run_1", result=result), task_id="t", fingerprint="f", seconds=1.23456)
    assert (made.outcome, made.code_hash, made.seconds, made.input_tokens, len(made.attempts)) == (
        "STUCK",
        "h2",
        1.235,
        5,
        3,
    )


def test_summary_counts_first_attempts_repairs_and_errors():
    records = [
        record("a", True, seconds=1.0, input_tokens=10, output_tokens=1),
        record("b", False, True, seconds=2.0, input_tokens=20, output_tokens=2),
        record("c", False, False, False, seconds=3.0),
        record("d", outcome="ERROR", seconds=0.5, input_tokens=1),
    ]
    summary = summarise(records)
    assert (summary.tasks, summary.errors, summary.first, summary.solved) == (3, 1, 1, 2)
    assert summary.solved_by == (1, 2, 2)
    assert (summary.attempts, summary.input_tokens, summary.output_tokens, summary.seconds) == (6, 31, 3, 6.5)


def test_first_candidate_counts_by_its_number_not_by_its_place():
    late = Record("a", "f", "PASSED", attempts=[AttemptRecord(2, "draft", True, 1, 1, "", "", 0.0)])
    assert summarise([late]).first == 0
    assert summarise([late]).solved == 1


def test_table_says_what_the_numbers_mean():
    table = summary_table(
        summarise([record("a", True), record("b", False)]), wall_time=timedelta(seconds=2), candidates=3
    )
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    text = capture.get()
    assert "1 of 2  (50.0 %)" in text
    assert "the first candidate" in text
    assert "1.00" in text


def test_summary_of_nothing_has_no_division_by_zero():
    summary = summarise([record("d", outcome="ERROR")])
    assert summary.solved_by == ()
    summary_table(summary, wall_time=None, candidates=1)


def test_plot_is_a_png(tmp_path):
    plot(summarise([record("a", True), record("b", False, True)]), tmp_path / "new" / "p.png", title="t")
    assert (tmp_path / "new" / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageFault, match="--plot: cannot write"):
        plot(summarise([record("a", True)]), tmp_path / "new", title="t")
