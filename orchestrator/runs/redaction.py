"""Takes secrets out of what is kept of a run."""

import json
from collections.abc import Iterable

SHOWN_INSTEAD = "[secret]"


class Redactor:
    """Takes these secrets out of a text, also where they are written as JSON strings."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for one in secrets if one for form in (one, json.dumps(one)[1:-1])}
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._forms:
            text = text.replace(secret, SHOWN_INSTEAD)
        return text

    def open_end(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a secret that goes on after it."""
        longest = len(self._forms[0]) - 1 if self._forms else 0
        for size in range(min(longest, len(text)), 0, -1):
            if any(secret.startswith(text[-size:]) for secret in self._forms if len(secret) > size):
                return size
        return 0
