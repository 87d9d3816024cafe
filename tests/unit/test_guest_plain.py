"""Plain values cross as they are, everything else is refused, and no bytes make anything but plain values."""

import datetime as dt
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.guest.dialogue import plain
from sandbox_service.guest.dialogue.plain import (
    MalformedError,
    Memo,
    NotPlainError,
    TooLargeError,
    from_bytes,
    to_bytes,
)
from sandbox_service.guest.dialogue.plain_reader import _CONTAINERS, _READERS, Reader
from sandbox_service.guest.dialogue.plain_writer import Writer


class Iterators:
    """Knows one iterator, by the number 7."""

    def __init__(self):
        self.one = iter([1])

    def number(self, value):
        return 7 if value is self.one else None

    def is_generator(self, value):
        return value is not self.one

    def opaque(self, _value):
        return None

    def found(self, number, *, generator):
        if number != 7 or generator:
            raise LookupError(number)
        return self.one

    def stand_in(self, number, *, truth, what):
        return [number, truth, what]


def crossed(value, *, exact=True):
    """What arrives."""
    iterators = Iterators()
    node = Writer(Memo(), iterators, exact=exact).node(value)
    return Reader(Memo(), iterators).value(from_bytes(to_bytes(node)))


def same(one, other):
    """Whether two values are alike in type, content and order, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return all(map(same, one.items(), other.items())) and len(one) == len(other)
    if isinstance(one, (set, frozenset)):  # compared one by one: nan is not equal to itself
        return len(one) == len(other) and all(any(same(value, arrived) for arrived in other) for value in one)
    return one == other


atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.integers(min_value=2**62)
    | st.text(st.characters(categories=["Cs", "Lu"]))
    | st.datetimes(timezones=st.none() | st.just(dt.UTC) | st.just(dt.timezone(dt.timedelta(hours=2), "CEST")))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.builds(range, st.integers(-99, 99), st.integers(-99, 99), st.sampled_from([1, -1, 7]))
)
hashable = st.recursive(atoms, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
values = st.recursive(
    atoms | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(hashable, inner)
        | st.sets(hashable)
        | st.builds(deque, st.lists(inner), st.none() | st.integers(0, 9))
        | st.builds(OrderedDict, st.dictionaries(hashable, inner))
        | st.builds(Counter, st.lists(hashable))
    ),
    max_leaves=20,
)


@given(values)
def test_a_plain_value_arrives_as_it_was(value):
    assert same(crossed(value), value)


SPECIAL = [
    -0.0,
    math.inf,
    -math.inf,
    2**63 - 1,
    2**63,
    -(2**63),
    "\ud83d\ude00",
    "\ud800",
    "\x00",
    "é",
    complex(-0.0, 1),
    Decimal("NaN"),
    Decimal("-0.00"),
    Decimal("1E+999"),
    int,
    object,
    deque([1, 2], 2),
    defaultdict(list, a=[1]),
]


@pytest.mark.parametrize("value", SPECIAL)
def test_what_a_carrier_easily_loses_arrives(value):
    found = crossed(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_a_number_of_thousands_of_digits_arrives():
    assert crossed(10**5000) == 10**5000


def test_a_default_factory_arrives():
    found = crossed(defaultdict(list))
    found["new"].append(1)
    assert found == {"new": [1]}


def test_an_ordered_dictionary_keeps_an_order_that_it_was_given_later():
    table = OrderedDict(a=1, b=2)
    table.move_to_end("a")
    assert list(crossed(table)) == ["b", "a"]


def test_views_of_a_dictionary_arrive_as_views():
    table = {"a": 1, "b": 2}
    assert crossed(table.keys()) == table.keys()
    assert list(crossed(table.values())) == [1, 2]
    assert crossed(table.items()) == table.items()


def test_one_list_in_two_places_stays_one():
    inner = [1]
    found = crossed([inner, (inner, {"k": inner})])
    found[0].append(2)
    assert found[1][0] == found[1][1]["k"] == [1, 2]


def test_a_list_that_holds_itself_does_so_there():
    loop = [1]
    loop.append({"back": loop})
    found = crossed(loop)
    assert found[1]["back"] is found


def test_an_iterator_arrives_as_the_one_that_has_its_number():
    iterators = Iterators()
    node = Writer(Memo(), iterators, exact=True).node([iterators.one])
    assert Reader(Memo(), iterators).value(node)[0] is iterators.one


Point = namedtuple("Point", "x y")  # noqa: PYI024 - its class is the point


class Color(IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Rows(list):
    pass


EXTENDING = [
    (Point(1, 2), (1, 2)),
    (Color.RED, 1),
    (Name("x"), "x"),
    (Liar(3), 3),
    (Rows([1]), [1]),
]


@pytest.mark.parametrize(("value", "bare"), EXTENDING)
def test_what_extends_a_plain_type_is_refused_or_becomes_the_plain_type(value, bare):
    with pytest.raises(NotPlainError):
        crossed(value)
    found = crossed([value], exact=False)[0]
    assert type(found) is type(bare)
    assert same(found, bare)


class Node:
    pass


def function():
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "an instance of object"),
        (Node(), "an instance of Node"),
        (Node, "the class Node"),
        (function, "a function"),
        (len, "a function"),
        ((n for n in ()), "a generator"),
        (json, "a module"),
        (ValueError("x"), "an instance of ValueError"),
        (defaultdict(lambda: 1), "a defaultdict with a function"),
        (memoryview(b""), "an instance of memoryview"),
    ],
)
def test_everything_else_is_refused_by_name_however_deep_it_lies(value, said):
    for place in (value, [value], {"k": (1, [value])}):
        with pytest.raises(NotPlainError) as refused:
            crossed(place)
        assert refused.value.what == said


def deep(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


def shared_pairs():
    found = (1,)
    for _ in range(40):
        found = (found, found)
    return found


@pytest.mark.parametrize(
    "value",
    [deep(plain.MAX_DEPTH + 2), shared_pairs(), [0] * (plain.MAX_VALUES + 1)],
    ids=["deep", "shared", "many"],
)
def test_too_much_is_refused_before_it_is_sent(value):
    with pytest.raises(TooLargeError):
        crossed(value)


def test_a_message_over_its_bytes_is_refused_on_both_sides():
    with pytest.raises(TooLargeError):
        to_bytes("x" * plain.MAX_BYTES)
    with pytest.raises(MalformedError):
        from_bytes(b'"' + b"x" * plain.MAX_BYTES + b'"')
    with pytest.raises(MalformedError):
        from_bytes(b"[" + b"[]," * plain._MAX_BRACKETS + b"[]]")


MALFORMED = [
    {},
    {"l": []},
    [],
    ["?"],
    ["l"],
    ["l", 1],
    ["l", [{}]],
    [["l", []]],
    ["s", [["l", []]]],
    ["d", [1]],
    ["d", [["l", []], 1]],
    ["t", "ab"],
    ["@", 0],
    ["@", -1],
    ["@", True],
    ["@", "0"],
    ["i", 5],
    ["i", "x"],
    ["b", "zz"],
    ["b", 1],
    ["u", "ff"],
    ["c", 1, 2],
    ["c", "1", 2.0],
    ["r", [1, 2, 0]],
    ["r", [1.0, 2, 3]],
    ["D", 0, 1, 1],
    ["D", 2024, 2, 30],
    ["D", 2024.0, 1, 1],
    ["dt", 1],
    ["tm", 25, 0, 0, 0, 0, None],
    ["tm", 1, 0, 0, 0, 7, None],
    ["tm", 1, 0, 0, 0, 0, [9, 0, 0, "x"]],
    ["td", 10**12, 0, 0],
    ["n", "1x"],
    ["n", 5],
    ["n", "1" * 20_000],
    ["F", [1, 0]],
    ["F", [1.5, 2]],
    ["T", "type"],
    ["T", ["int"]],
    ["g", 0, False],
    ["g", 7],
    ["o", -1, True, "x"],
    ["o", 1, True, 5],
    ["g", "7", False],
    ["q", [], "x"],
    ["q", [], -1],
    ["dd", [], "len"],
    ["dd", [], ["x"]],
    ["vi", [1]],
    ["vk", [["l", []]]],
    [None],
    [5],
    ["tz", 5],
]


@pytest.mark.parametrize("node", MALFORMED, ids=repr)
def test_a_node_that_no_writer_makes_is_refused(node):
    with pytest.raises(MalformedError):
        Reader(Memo(), Iterators()).value(node)


PLAIN_TYPES = {
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    bytearray,
    complex,
    list,
    tuple,
    dict,
    set,
    frozenset,
    range,
    deque,
    Counter,
    OrderedDict,
    defaultdict,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    dt.timezone,
    Decimal,
    Fraction,
    type,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    type(iter([])),
}
TAGS = [*_CONTAINERS, *_READERS, "x"]
nodes = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["int", "00", "1.5"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(st.sampled_from(TAGS), inner).map(list)
        | st.tuples(st.sampled_from(TAGS), st.lists(inner, max_size=4)).map(list)
        | st.tuples(st.sampled_from(TAGS), inner, inner).map(list)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(nodes)
def test_nothing_but_plain_values_ever_comes_out(node):
    memo = Memo()
    try:
        found = Reader(memo, Iterators()).value(node)
    except MalformedError:
        return
    for value in (found, *memo.containers):
        assert type(value) in PLAIN_TYPES


@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_bytes_are_a_message_or_malformed(data):
    try:
        node = from_bytes(data)
        Reader(Memo(), Iterators()).value(node)
    except MalformedError:
        pass


def changed(value, new):
    """Sends a container, then its new content, and gives the one at the far end."""
    sent, got = Memo(), Memo()
    iterators = Iterators()
    found = Reader(got, iterators).value(Writer(sent, iterators, exact=True).node(value))
    Reader(got, iterators).assign(0, Writer(sent, iterators, exact=True).content(new))
    return found


@pytest.mark.parametrize(
    ("value", "new"),
    [
        ([1, 2], [2, [1]]),
        ({"a": 1}, {"b": [2]}),
        ({1}, {2, 3}),
        (bytearray(b"a"), bytearray(b"bc")),
        (deque([1]), deque([2, 3])),
        (Counter("a"), Counter("bb")),
        (OrderedDict(a=1), OrderedDict(b=2, a=1)),
        (defaultdict(int, a=1), defaultdict(int, b=1)),
    ],
)
def test_a_container_is_changed_in_place(value, new):
    assert same(changed(value, new), new)


@pytest.mark.parametrize("content", [["d", []], ["t", []], ["@", 0], ["l", 5], 5, [], {}])
def test_a_container_is_never_changed_into_another_type(content):
    memo = Memo()
    found = Reader(memo, Iterators()).value(["l", [1]])
    with pytest.raises(MalformedError):
        Reader(memo, Iterators()).assign(0, content)
    assert found == [1]


@pytest.mark.parametrize("number", [1, -2, "0", None])
def test_only_a_container_of_the_same_exchange_can_be_changed(number):
    memo = Memo()
    Reader(memo, Iterators()).value(["l", [1]])
    with pytest.raises(MalformedError):
        Reader(memo, Iterators()).assign(number, ["l", []])
