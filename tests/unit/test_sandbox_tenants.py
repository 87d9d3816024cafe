"""Who calls: the tenant's name in the metadata of a call."""

import pytest

from sandbox_service.errors import InvalidJob
from sandbox_service.tenants import TENANT_KEY, tenant_of


class Context:
    """A call with this metadata."""

    def __init__(self, *values, key=TENANT_KEY):
        self._metadata = tuple((key, value) for value in values)

    def invocation_metadata(self):
        return (("other", "x"), *self._metadata)


@pytest.mark.parametrize("name", ["", "a", "A-b_c.9", "x" * 128])
def test_a_name_of_the_allowed_form_is_the_tenant(name):
    assert tenant_of(Context(name)) == name


def test_a_call_without_a_name_has_the_tenant_of_no_name():
    assert tenant_of(Context()) == tenant_of(Context("other", key="x-other")) == ""


def test_the_same_name_twice_is_one_name():
    assert tenant_of(Context("a", "a")) == "a"


@pytest.mark.parametrize("name", ["x" * 129, "a b", "a/b", "ä", "a\n", "\0", b"a\xff", "٣"])
def test_a_name_of_another_form_is_refused_by_the_name_of_its_key(name):
    with pytest.raises(InvalidJob) as caught:
        tenant_of(Context(name))
    assert [field for field, _ in caught.value.violations] == [TENANT_KEY]


def test_two_names_are_refused():
    with pytest.raises(InvalidJob):
        tenant_of(Context("a", "b"))
