"""The answer no, an answer that never comes, and the error objects that clients hand on. Never: whose fault it is."""

from __future__ import annotations

from txlayer.adapters.error_codes import UNAVAILABLE_CODES, Code


class RefusedError(Exception):
    """The cluster's answer to a request is this code."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.kafka_name)
        self.code = code


class NoAnswerError(Exception):
    """A request or its answer was lost: whether it happened is unknown."""


class ClientCrashedError(Exception):
    """This client is dead: nothing that it calls does anything any more."""


class ClientError:
    """An error as a client of Kafka reports it, with the client's own judgement of what it means."""

    __slots__ = ("_code", "_is_abortable", "_is_fatal", "_text")

    def __init__(
        self, code: Code, text: str = "", *, is_fatal: bool = False, is_abortable: bool = False
    ) -> None:
        self._code = code
        self._text = text or code.kafka_name.strip("_").lower().replace("_", " ")
        self._is_fatal = is_fatal
        self._is_abortable = is_abortable

    def __repr__(self) -> str:
        return f"ClientError({self.name()})"

    def code(self) -> int:
        """Kafka's number."""
        return int(self._code)

    def name(self) -> str:
        """Kafka's name."""
        return self._code.kafka_name

    def str(self) -> str:
        """What a person may read."""
        return self._text

    def fatal(self) -> bool:
        """The client is of no use any more."""
        return self._is_fatal

    def txn_requires_abort(self) -> bool:
        """The Kafka transaction must be given up."""
        return self._is_abortable

    def retriable(self) -> bool:
        """The same call may be made again."""
        return self._code in UNAVAILABLE_CODES


class ClientFailureError(Exception):
    """What a client's own call raises; `error` says why."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(f"{error.name()}: {error.str()}")
        self.error = error
