"""The fence scanner alone: CommonMark where it decides."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.models import fences
from orchestrator.models.fences import scan


def contents(text):
    return [block.content for block in scan(text)]


def test_a_fence_closes_with_its_own_character_and_at_least_its_length():
    assert contents("````\n```\n~~~~\n`````\n") == ["```\n~~~~\n"]
    assert contents("~~~\n```\n~~\n~~~\n") == ["```\n~~\n"]


def test_a_closing_fence_has_nothing_after_it():
    assert contents("```\na\n``` b\n```\n") == ["a\n``` b\n"]


def test_a_fence_four_columns_deeper_closes_nothing():
    assert contents("```\n    ```\n```\n") == ["    ```\n"]


def test_backticks_in_the_info_string_make_no_fence():
    assert scan("``` a`b\nx\n") == []


def test_an_unclosed_block_reaches_the_end():
    (block,) = scan("text\n```py\na\nb")
    assert (block.info, block.content, block.closed, block.before) == ("py", "a\nb\n", False, "text")


def test_the_indentation_of_the_opening_fence_is_taken_off():
    assert contents("  ```\n  a\n    b\n c\n  ```") == ["a\n  b\nc\n"]


def test_form_feeds_and_line_separators_end_no_line():
    assert contents("```\na\x0cb\u2028c\n```") == ["a\x0cb\u2028c\n"]


def test_the_line_before_is_told_once():
    first, second = scan("**a.py**\n\n```\n1\n```\n```\n2\n```")
    assert (first.before, second.before) == ("**a.py**", "")


def test_a_content_that_goes_on_is_extended_to_the_next_closing_fence():
    (block,) = scan("```\na\n```\nb\n```\n", lambda _info, content: content == "a\n")
    assert block.content == "a\n```\nb\n"


def test_a_content_that_never_ends_keeps_its_first_closing_fence():
    first, _ = scan("```\na\n```\nb\n```\n", lambda _info, _content: True)
    assert (first.content, first.closed) == ("a\n", True)


def test_every_line_is_looked_at_a_bounded_number_of_times(monkeypatch):
    looked_at = 0

    class Counted:
        @staticmethod
        def fullmatch(line):
            nonlocal looked_at
            looked_at += 1
            return pattern.fullmatch(line)

    pattern = fences._FENCE
    monkeypatch.setattr(fences, "_FENCE", Counted)
    text = "```\nfoo bar\n```\n" * 400
    assert len(scan(text, lambda _info, _content: False)) == 400
    assert looked_at <= 2 * len(text.split("\n"))


def test_of_countless_blocks_one_more_than_the_most_is_read():
    assert len(scan("```\na\n```\n" * 5000)) == fences.MOST_BLOCKS + 1


@given(st.text().filter(lambda text: "\r" not in text), st.sampled_from("`~"))
def test_any_text_comes_back_from_a_fence_that_is_long_enough(text, mark):
    fence = mark * (max([3, *(len(run) + 1 for run in text.split("\n"))]))
    (block,) = scan(f"before\n{fence}x\n{text}\n{fence}\nafter")
    assert (block.content, block.closed, block.info) == (f"{text}\n", True, "x")


@given(st.lists(st.sampled_from(["```", "~~~", "````", "```py", "a", " ```", "\t```", "``` a`"])).map("\n".join))
def test_blocks_follow_each_other_and_every_line_is_counted_once(text):
    at = 0
    for block in scan(text):
        assert at <= block.start < block.end
        at = block.end
    assert at <= len(fences.split_lines(text))
