"""Who calls: the tenant that a call names in its metadata. What tenants may do is said where it is counted."""

import re
from typing import Any

import grpc

from sandbox_service.errors import InvalidJob

TENANT_KEY = "x-codemend-tenant"
MAXIMUM_TENANT_BYTES = 128
_TENANT = re.compile(rf"[A-Za-z0-9._-]{{0,{MAXIMUM_TENANT_BYTES}}}", re.ASCII)


def tenant_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The caller's tenant; "" where it names none.

    Raises:
        InvalidJob: the name is not of the allowed form, or there are two different ones.
    """
    named = {value for key, value in context.invocation_metadata() or () if key == TENANT_KEY}
    tenant = named.pop() if named else ""
    if named:
        raise InvalidJob((TENANT_KEY, "names more than one tenant"))
    text = tenant if isinstance(tenant, str) else tenant.decode("utf-8", "backslashreplace")
    if not _TENANT.fullmatch(text):
        raise InvalidJob((TENANT_KEY, f"must be at most {MAXIMUM_TENANT_BYTES} bytes of [A-Za-z0-9._-]"))
    return text
