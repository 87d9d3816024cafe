"""gRPC plumbing that every service of codemend shares; it knows no word of what the services do."""

from codemend.rpc.addresses import Address, AddressError, parse_address
from codemend.rpc.details import bad_request, error_detail, quota_failure, resource_info, retry_info
from codemend.rpc.entry import describe_settings_error, write_ready_file
from codemend.rpc.errors import ErrorRule, ErrorTable
from codemend.rpc.lifecycle import StopSignals, finished, serve_until_stopped
from codemend.rpc.logs import LEVELS, REQUEST_ID, configure_logging
from codemend.rpc.options import MESSAGE_LIMIT_BYTES, channel_options, open_channel, server_options
from codemend.rpc.quantities import AddressText, Size, Time, TimeOrNone
from codemend.rpc.server import CLEAN_UP_TIME, RpcServer

__all__ = [
    "CLEAN_UP_TIME",
    "LEVELS",
    "MESSAGE_LIMIT_BYTES",
    "REQUEST_ID",
    "Address",
    "AddressError",
    "AddressText",
    "ErrorRule",
    "ErrorTable",
    "RpcServer",
    "Size",
    "StopSignals",
    "Time",
    "TimeOrNone",
    "bad_request",
    "channel_options",
    "configure_logging",
    "describe_settings_error",
    "error_detail",
    "finished",
    "open_channel",
    "parse_address",
    "quota_failure",
    "resource_info",
    "retry_info",
    "serve_until_stopped",
    "server_options",
    "write_ready_file",
]
