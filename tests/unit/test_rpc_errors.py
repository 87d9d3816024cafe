import logging
from datetime import timedelta

import grpc
from codemend.rpc import ErrorRule, ErrorTable, bad_request, resource_info, retry_info
from google.rpc import error_details_pb2


class BaseKindError(Exception):
    pass


class DerivedError(BaseKindError):
    pass


class FurtherError(DerivedError):
    pass


class BrokenError(BaseKindError):
    pass


TABLE = ErrorTable(
    {
        BaseKindError: ErrorRule(grpc.StatusCode.UNAVAILABLE, "BASE", lambda _: retry_info(timedelta(seconds=2))),
        DerivedError: ErrorRule(
            grpc.StatusCode.INVALID_ARGUMENT, "DERIVED", lambda error: bad_request([("field", str(error))])
        ),
        BrokenError: ErrorRule(grpc.StatusCode.INTERNAL, "BROKEN"),
    }
)


def details(status, kind):
    found = [detail for detail in status.details if detail.Is(kind.DESCRIPTOR)]
    assert len(found) == 1
    message = kind()
    found[0].Unpack(message)
    return message


def test_the_most_derived_class_with_a_rule_decides():
    assert TABLE.rule_for(BaseKindError()).reason == "BASE"
    assert TABLE.rule_for(DerivedError()).reason == "DERIVED"
    assert TABLE.rule_for(FurtherError()).reason == "DERIVED"
    assert TABLE.rule_for(ValueError()) is None


def test_a_known_error_carries_its_text_one_error_info_and_its_details():
    status = TABLE.status_for(DerivedError("is wrong"))
    assert (status.code, status.message) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "is wrong")
    info = details(status, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("DERIVED", "codemend")
    violation = details(status, error_details_pb2.BadRequest).field_violations[0]
    assert (violation.field, violation.description) == ("field", "is wrong")


def test_retry_info_holds_the_delay():
    assert details(TABLE.status_for(BaseKindError()), error_details_pb2.RetryInfo).retry_delay.seconds == 2


def test_resource_info_names_the_resource():
    assert resource_info("run", "run_1")[0].resource_name == "run_1"


def test_a_fault_keeps_its_text_for_the_log_and_gives_the_caller_an_id(caplog):
    for fault in (RuntimeError("the password is out"), BrokenError("the password is out")):
        with caplog.at_level(logging.ERROR):
            status = TABLE.status_for(fault)
        assert status.code == grpc.StatusCode.INTERNAL.value[0]
        assert b"password" not in status.SerializeToString()
        error_id = details(status, error_details_pb2.ErrorInfo).metadata["error_id"]
        assert error_id in status.message
        assert caplog.records[-1].error_id == error_id
        assert caplog.records[-1].exc_info[1] is fault


def test_thousands_of_violations_fit_into_the_trailers_and_are_counted():
    status = TABLE._status(
        TABLE.rule_for(DerivedError()), "…", bad_request((f"files[{n}].path", "ü" * 1000) for n in range(5000)), {}
    )
    assert status.ByteSize() < 4096
    violations = details(status, error_details_pb2.BadRequest).field_violations
    assert violations[-1].description == f"and {5000 - len(violations) + 1} more"


def test_a_long_or_unclean_text_becomes_a_short_clean_one():
    status = TABLE.status_for(DerivedError("\udcff" + "ü" * 10_000))
    assert status.message.startswith("\\udcff")
    assert len(status.message) == 500
