"""Replies as models write them, and the code that is taken from each."""

import ast
import textwrap
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.models import extract_code

F = "def f(x):\n    return x + 1\n"


def fenced(code: str, info: str = "python", fence: str = "```") -> str:
    return f"{fence}{info}\n{code}{fence}\n"


def one(reply: str, entry: str = "f", finish: str = "stop") -> str:
    """The code of a reply that must give exactly the default file."""
    made = extract_code(reply, finish_reason=finish, default_path="solution.py", entry_point=entry)
    assert made.fault == ""
    assert list(made.files) == ["solution.py"]
    return made.files["solution.py"]


SHELL, OUTPUT = fenced("pip install x\n", "bash"), fenced("[1, 2]\n", "")


def fault(reply: str, entry: str = "f", finish: str = "stop") -> str:
    made = extract_code(reply, finish_reason=finish, default_path="solution.py", entry_point=entry)
    assert not made.files
    assert made.fault
    return made.fault


DOCSTRING_INDENTED = 'def f(x):\n    """Adds.\n\n    ```python\n    f(1)\n    ```\n    """\n    return x + 1\n'
DOCSTRING_FLUSH = 'HELP = """\n```\nf(1)\n```\n"""\n\n\ndef f(x):\n    return x + 1\n'
DOCSTRING_FLUSH_INFO = 'def f(x):\n    """\n```python\nf(1)\n```\nand\n```\nf(2)\n```\n    """\n    return x + 1\n'

SAME_CODE = {
    "plain": fenced(F),
    "prose around": f"Sure! Here it is:\n\n{fenced(F)}\nThis adds one. Hope it helps!",
    "python3": fenced(F, "python3"),
    "py": fenced(F, "py"),
    "capital and blank": fenced(F, "Python "),
    "blank before the language": fenced(F, " python"),
    "title attribute": fenced(F, 'python title="solution.py"'),
    "braces": fenced(F, "{.python .numberLines}"),
    "line numbers": fenced(F, "python {linenos=true}"),
    "colon and path": fenced(F, "python:solution.py"),
    "path as info": fenced(F, "solution.py"),
    "no language": fenced(F, ""),
    "unknown language": fenced(F, "code"),
    "tildes": fenced(F, "python", "~~~"),
    "four backticks": fenced(F, "python", "````"),
    "closing fence longer": f"```python\n{F}`````\n",
    "blanks after the closing fence": f"```python\n{F}```   \n",
    "CRLF": fenced(F).replace("\n", "\r\n"),
    "no newline at the end": fenced(F).rstrip("\n"),
    "list item": "1. First:\n\n" + textwrap.indent(fenced(F), "   ") + "\n2. Then run it.",
    "deep list item": "- a\n  - b\n\n" + textwrap.indent(fenced(F), "      "),
    "indented fence, flush code": f"  ```python\n{F}  ```\n",
    "whole code indented": fenced(textwrap.indent(F, "    ")),
    "unclosed at the end": f"```python\n{F}",
    "bare code": F,
    "bare code, prose around": f"Here is the function:\n\n{F}\nIt adds one to x.",
    "bare code, one word after": f"{F}Done",
    "bare code, stray closing fence": f"{F}```\n",
    "bare code, stray fence and prose": f"{F}```\nThis function adds one.\n",
    "opening fence doubled": f"```python\n```python\n{F}```\n",
    "stray fence first": f"```\n```python\n{F}```\n",
    "markdown around": f"```markdown\n# Solution\n```python\n{F}```\nDone.\n```\n",
    "longer markdown around": f"````markdown\n# Solution\n\n```python\n{F}```\n````\n",
    "usage first": f"Use it so:\n{fenced('from solution import f' + chr(10) + 'print(f(1))' + chr(10))}\n{fenced(F)}",
    "usage after": f"{fenced(F)}\nExample:\n{fenced('print(f(1))  # 2' + chr(10))}",
    "tests after": f"{fenced(F)}\nTests:\n{fenced('def test_f():' + chr(10) + '    assert f(1) == 2' + chr(10))}",
    "asserts after": f"{fenced(F)}\n{fenced('assert f(1) == 2' + chr(10))}",
    "shell and output beside": SHELL + fenced(F) + OUTPUT,
    "transcript beside": f"{fenced(F)}{fenced('>>> f(1)' + chr(10) + '2' + chr(10))}",
    "old code quoted first": f"Yours:\n{fenced('def f(x):' + chr(10) + '    return x' + chr(10))}Fixed:\n{fenced(F)}",
    "thinking before": f"<think>\nMaybe\n{fenced('def f(x):' + chr(10) + '    pass' + chr(10))}</think>\n\n{fenced(F)}",
    "only the closing tag": f"I add one.\n</think>\n{fenced(F)}",
    "answer inside of thinking": f"<think>So:\n{fenced(F)}",
    "end mark of a template": f"{fenced(F)}<|im_end|>",
    "end mark after unclosed code": f"```python\n{F}<|endoftext|>",
}


@pytest.mark.parametrize("name", SAME_CODE)
def test_gives_the_same_function_however_it_is_wrapped(name):
    code = one(SAME_CODE[name])
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(F))


@pytest.mark.parametrize("code", [DOCSTRING_INDENTED, DOCSTRING_FLUSH, DOCSTRING_FLUSH_INFO])
@pytest.mark.parametrize("info", ["python", ""])
def test_an_inner_fence_in_a_text_of_the_code_ends_nothing(code, info):
    assert one(f"Here:\n{fenced(code, info)}\nThat was it.") == code


@pytest.mark.parametrize("code", [DOCSTRING_INDENTED, DOCSTRING_FLUSH])
def test_bare_code_may_hold_fences_in_its_texts(code):
    assert one(code) == code


@pytest.mark.parametrize(
    "reply",
    [
        "```python def f(x): return x + 1```",
        "```def f(x): return x + 1```",
        "```python def f(x):\n    return x + 1\n```",
    ],
)
def test_code_on_the_fence_line_keeps_its_first_word(reply):
    assert ast.dump(ast.parse(one(reply))) == ast.dump(ast.parse("def f(x): return x + 1"))


def test_an_import_is_never_taken_for_a_language():
    code = one("```import math\n\ndef f(x):\n    return math.sqrt(x)\n```")
    assert code.startswith("import math\n")


def test_what_the_entry_point_needs_is_joined_in_order():
    helper = "class Point:\n    pass\n"
    main = "def f(x):\n    return Point()\n"
    unrelated = "def g():\n    return 0\n"
    assert one(fenced(helper) + "and\n" + fenced(unrelated) + fenced(main)) == f"{helper}\n\n{main}"


def test_what_the_entry_point_defines_itself_is_not_joined():
    assert one(fenced("def helper():\n    return 1\n") + fenced(F)) == F


def test_joins_all_definitions_when_no_entry_point_is_named():
    a, b = "def a():\n    return 1\n", "def b():\n    return 2\n"
    assert one(fenced(a) + fenced(b) + fenced("print(a())\n"), entry="") == f"{a}\n\n{b}"


def test_a_later_version_replaces_an_earlier_one_without_an_entry_point():
    assert one(fenced("def f(x):\n    return x\n") + fenced(F), entry="") == F


def test_a_program_without_definitions_is_code():
    assert one(fenced("print('hi')\n") + "Output:\n" + fenced("hi\n", ""), entry="") == "print('hi')\n"


def test_an_assigned_name_is_an_entry_point():
    assert one(fenced("f = lambda x: x + 1\n")) == "f = lambda x: x + 1\n"


def test_an_entry_point_may_be_an_attribute():
    code = "class C:\n    def m(self):\n        return 1\n"
    assert one(fenced(code), entry="C.m") == code


@pytest.mark.parametrize(
    "reply",
    [
        fenced("def f(x)\n    return x\n"),
        f"{fenced('print(f(1))' + chr(10))}{fenced('def f(x)' + chr(10) + '    return x' + chr(10))}",
        fenced("def f(x)\n    return x\n", ""),
    ],
)
def test_a_syntax_error_in_a_complete_block_is_the_codes_own_fault(reply):
    assert one(reply) == "def f(x)\n    return x\n"


A, B = "def helper():\n    return 1\n", "from a import helper\n\n\ndef f(x):\n    return helper()\n"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (fenced(f"# file: a.py\n{A}"), fenced(f"# solution.py\n{B}")),
        (fenced(A, 'python title="a.py"'), fenced(B, 'python title="solution.py"')),
        ("**a.py**\n" + fenced(A), "**solution.py**\n\n" + fenced(B)),
        ("### a.py\n" + fenced(A), "### `solution.py`\n" + fenced(B)),
        ("1. `a.py`:\n" + fenced(A), "2. `solution.py`:\n" + fenced(B)),
        (fenced(A, "python a.py"), fenced(B, "python solution.py")),
        (fenced(A, "a.py"), fenced(B, "python:solution.py")),
        ("First, create `a.py`:\n" + fenced(A), "Then create **solution.py**:\n" + fenced(B)),
        ("File: a.py\n" + fenced(A), "and the main part\n" + fenced(B)),
    ],
)
def test_several_files_keep_their_names(first, second):
    made = extract_code(first + "\n" + second, finish_reason="stop", default_path="solution.py", entry_point="f")
    assert made.fault == ""
    bare = {
        path: text.removeprefix("# file: a.py\n").removeprefix("# solution.py\n") for path, text in made.files.items()
    }
    assert bare == {"a.py": A, "solution.py": B}


def test_test_files_of_the_reply_are_left_out():
    reply = "**solution.py**\n" + fenced(F) + "**test_solution.py**\n" + fenced("def test_f():\n    assert f(1)\n")
    reply += "**data.json**\n" + fenced("[1]\n", "json")
    made = extract_code(reply, finish_reason="stop", default_path="solution.py", entry_point="f")
    assert dict(made.files) == {"solution.py": F, "data.json": "[1]\n"}


def test_the_main_file_under_another_name_gets_the_wanted_one():
    reply = "**a.py**\n" + fenced(A) + "**main.py**\n" + fenced(B)
    made = extract_code(reply, finish_reason="stop", default_path="solution.py", entry_point="f")
    assert dict(made.files) == {"a.py": A, "solution.py": B}


def test_a_main_file_that_others_import_is_not_renamed():
    reply = "**main.py**\n" + fenced(F) + "**b.py**\n" + fenced("from main import f\n\nprint(f(1))\n")
    assert "name the main file solution.py" in fault(reply)


@pytest.mark.parametrize("path", ["/etc/a.py", "../a.py", "x/../../a.py"])
def test_paths_that_lead_outside_are_no_names(path):
    assert one(f"**{path}**\n{fenced(F)}") == F
    assert one(fenced(F, f'python title="{path}"')) == F


def test_one_named_file_gets_the_default_name():
    assert one("**adder.py**\n" + fenced(F)) == F


FAULTS = {
    "empty": ("", "empty"),
    "blank": (" \n\n", "empty"),
    "prose": ("I cannot help with that. Sorry", "no code"),
    "one word": ("Sorry", "no code"),
    "prose with a colon": ("Note: this", "no code"),
    "shell only": (fenced("pip install numpy\n", "bash"), "no code"),
    "transcript only": (fenced(">>> f(1)\n2\n"), "interpreter session"),
    "bare transcript": (">>> def f(x):\n...     return x\n>>> f(1)\n1\n", "no code"),
    "tests only": (fenced("def test_f():\n    assert f(1) == 2\n"), "defines `f`"),
    "another function": (fenced("def g(x):\n    return x\n"), "defines `f`"),
    "entry point only called": (fenced("print(f(1))\n"), "defines `f`"),
    "unclosed and half-written": (f"```python\n{F}\ndef g(x", "not closed"),
    "bare and half-written": (f"Here:\n{F}\ndef g(x", "SyntaxError"),
    "unclosed file of several": (
        f"**a.py**\n{fenced(A)}**solution.py**\n```python\n{B}\ndef g(",
        "solution.py is not closed",
    ),
    "empty block": ("```python\n```\n", "no code"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_says_why_there_is_no_code(name):
    reply, words = FAULTS[name]
    assert words in fault(reply)


@pytest.mark.parametrize("reply", [fenced(F), F, f"```python\n{F}", ""])
def test_a_reply_cut_off_at_the_limit_never_gives_code(reply):
    assert "cut off at the token limit" in fault(reply, finish="length")


def test_other_languages_give_their_longest_block():
    reply = fenced("npm i\n", "bash") + fenced("function f() {\n  return 1\n}\n", "js")
    made = extract_code(reply, finish_reason="stop", default_path="solution.js")
    assert dict(made.files) == {"solution.js": "function f() {\n  return 1\n}\n"}


CODE_PARTS = ["def f(x):", "return 1", "class A:", "x = 1", "@f", "(", ":", '"""', ">>> ", "    ", "# file: a.py"]
MARK_PARTS = ["```", "```python", "~~~", "````", "**a.py**", "<think>", "</think>", "text"]
ODD_PARTS = ["\n", "\r\n", "\x0c", "\u2028", "\x00", "\ud800"]
FRAGMENTS = st.sampled_from([*CODE_PARTS, *MARK_PARTS, *ODD_PARTS, "\n", "\n"])


@given(
    st.one_of(st.text(max_size=300), st.lists(FRAGMENTS, max_size=40).map("".join)), st.sampled_from(["", "f", "a b"])
)
@settings(max_examples=400, deadline=None)
def test_never_raises_and_gives_either_files_or_a_fault(reply, entry):
    made = extract_code(reply, finish_reason="stop", default_path="solution.py", entry_point=entry)
    assert bool(made.files) != bool(made.fault)


WORDS = st.lists(st.sampled_from(["a", "```", "~~~~", "```python", "", "  x", "'", "\\", "é", "#"]), max_size=8)


@given(WORDS.map("\n".join), st.sampled_from(["`", "~"]))
def test_valid_code_comes_back_as_it_was(text, mark):
    code = f"TEXT = {text!r}\nLINES = '''\n{text.replace(chr(39), '').replace(chr(92), '')}\n'''\n\n\n{F}"
    assert one(fenced(code, "python", mark * 6)) == code


@pytest.mark.parametrize(
    "text",
    [
        "```\nfoo bar\n```\n" * 30_000,
        "```python\nx = 1\n```\n" * 20_000,
        "```\n" * 100_000,
        "```markdown\n" + "~~~\nx\n~~~\n" * 40_000 + "```\n",
        "def f(x\n" * 20_000,
        "Note '''\n" * 20_000,
        "<think>a</think>\n" * 25_000,
        "a\n" + "</think>\n" * 50_000,
        "`" * 200_000 + "a" + "`" * 199_999,
    ],
)
def test_a_degenerate_reply_is_refused_within_seconds(text):
    started = time.monotonic()
    found = extract_code(text, finish_reason="stop", default_path="solution.py")
    assert found.fault
    assert time.monotonic() - started < 10


def test_a_reply_over_the_limit_is_not_read():
    found = extract_code("x = 1\n" * 200_000, finish_reason="stop", default_path="solution.py")
    assert "more than 524288 characters" in found.fault
