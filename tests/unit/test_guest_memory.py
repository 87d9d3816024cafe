"""Words of memory: each kind of change to an object is seen in them, and what changes nothing is not."""

import ctypes
import mmap
import resource
import sys
import types

import pytest

from sandbox_service.guest.testing import memory

LAYOUT = memory.find_layout()
pytestmark = pytest.mark.skipif(
    LAYOUT is None and sys.version_info >= (3, 13), reason="this interpreter counts no versions of its dicts"
)


def sample(one=1, *, two=2):
    return one, two


def made():
    inner = sample

    def outer(one=1, *, two=2):
        return inner(one, two=two)

    return outer


def test_the_layout_of_this_interpreter_is_found():
    assert LAYOUT is not None


FUNCTION = {
    "code": lambda one: setattr(one, "__code__", made().__code__.replace(co_name="other")),
    "defaults": lambda one: setattr(one, "__defaults__", (3,)),
    "no defaults": lambda one: setattr(one, "__defaults__", None),
    "keyword defaults": lambda one: setattr(one, "__kwdefaults__", {"two": 2}),
    "one keyword default": lambda one: one.__kwdefaults__.update(two=3),
    "a cell": lambda one: setattr(one.__closure__[0], "cell_contents", print),
}


@pytest.mark.parametrize("change", FUNCTION)
def test_a_change_to_a_function_is_seen(change):
    function = made()
    words = memory.Words(LAYOUT.of_function(function))
    before = words.read()
    [function(number) for number in range(100)]  # the interpreter adapts code that runs often
    assert words.read() == before
    FUNCTION[change](function)
    assert words.read() != before


DICT = {
    "a new key": lambda one: one.update(new=1),
    "another value": lambda one: one.__setitem__("a", 3),
    "a key less": lambda one: one.pop("a"),
    "nothing left": lambda one: one.clear(),
    "replaced and put back": lambda one: one.update(a=2) or one.update(a=1),
}


@pytest.mark.parametrize("change", DICT)
def test_a_change_to_a_dict_is_seen(change):
    names = {"a": 1, "b": 2}
    words = memory.Words([LAYOUT.of_dict(names)])
    before = words.read()
    assert (names.get("a"), list(names), names | {"c": 1}) == (1, ["a", "b"], {"a": 1, "b": 2, "c": 1})
    assert words.read() == before
    DICT[change](names)
    assert words.read() != before


LIST = {
    "one more": lambda one: one.append(4),
    "one less": list.pop,
    "another": lambda one: one.__setitem__(1, 9),
    "another order": list.reverse,
    "others": lambda one: one.__setitem__(slice(None), [7, 8, 9]),
    "nothing left": list.clear,
}


@pytest.mark.parametrize("change", LIST)
def test_a_change_to_a_list_is_seen(change):
    items = [1, 2, 3]
    words = memory.Words(LAYOUT.of_list(items))
    before = words.read()
    assert items.copy() == items[:]
    assert words.read() == before
    LIST[change](items)
    assert words.read() != before


def test_the_dict_behind_a_class_is_the_one_that_an_assignment_changes():
    class Some:
        value = 1

    words = memory.Words([LAYOUT.of_dict(memory.dict_behind(vars(Some)))])
    before = words.read()
    assert (Some.value, Some().value) == (1, 1)
    assert words.read() == before
    Some.value = 2
    assert words.read() != before


def test_a_place_that_is_not_mapped_any_more_cannot_be_read_and_ends_nothing():
    page = mmap.mmap(-1, mmap.PAGESIZE)
    view = ctypes.c_char.from_buffer(page)
    words = memory.Words([(ctypes.addressof(view), 8)])
    assert words.read() == bytes(8)
    del view
    page.close()
    assert words.read() is None


def test_without_a_free_descriptor_nothing_is_read():
    words = memory.Words([LAYOUT.of_dict({})])
    assert words.read() is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert words.read() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert words.read() is not None


def test_more_than_one_call_s_ranges_are_read_in_their_order():
    numbers = (ctypes.c_size_t * 5000)(*range(5000))
    at = ctypes.addressof(numbers)
    found = memory.Words([(at + 8 * number, 8) for number in range(5000)]).read()
    assert found == bytes(numbers)
    assert memory.Words([]).read() == b""


def test_a_word_that_is_there_twice_is_not_taken_for_either():
    value = object()
    both = types.SimpleNamespace()
    assert memory.word_of(both, value) is None
    holder = types.MethodType(print, value)
    assert memory.word_of(holder, value) is not None
    assert memory.word_of(types.MethodType(print, print), print) is None
