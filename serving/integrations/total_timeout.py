"""A limit on the time that an HTTP request takes as a whole.

The limits of HTTP clients count from one byte to the next, so a server that sends one every few seconds, or a proxy
before it, would keep its caller for ever. Needs `httpx` only: the Python client's wheel contains this file as well.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any

import httpx

# For the exception that follows a connection's shutdown.
_GRACE_S = 0.25


class Deadline:
    """Shuts a connection down once it has passed, whatever another thread does with it then.

    Attributes:
        over: it passed before `cancel`.
    """

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._shut)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connection: socket.socket) -> None:
        """The connection to shut down from now on, which replaces the last one."""
        with self._lock:
            self._socket = connection
            if self.over:
                self._shut_down()

    def cancel(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None

    def end(self) -> None:
        """Shut the connection down now."""
        self._timer.cancel()
        self._shut()

    def _shut(self) -> None:
        with self._lock:
            self.over = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # closed already
                # Not the method of a TLS socket, which takes its state away from the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class TotalTimeout(httpx.HTTPTransport):
    """Connections of `httpx.Client`, one for each request, which must be answered completely within `seconds`.

    Args:
        seconds: from looking up the host's name to the last byte; then `httpx.ReadTimeout` is raised.
        options: as for `httpx.HTTPTransport`.
    """

    def __init__(self, seconds: float, **options: Any) -> None:
        # A kept connection would not be announced to `trace`.
        super().__init__(**options, limits=httpx.Limits(max_keepalive_connections=0))
        self.seconds = seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        deadline = Deadline(self.seconds)

        def trace(event: str, told: dict[str, Any]) -> None:
            if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
                deadline.watch(told["return_value"].get_extra_info("socket"))

        request.extensions = {**request.extensions, "trace": trace}
        answer: Future[httpx.Response] = Future()

        def ask() -> None:
            try:
                answer.set_result(super(TotalTimeout, self).handle_request(request))
            except BaseException as error:
                answer.set_exception(error)

        # Nothing but its own limits, tens of seconds, ends the system's look-up of a name.
        threading.Thread(target=ask, daemon=True).start()
        try:
            response = answer.result(self.seconds + _GRACE_S)
        except FutureTimeoutError:
            # Once there is a connection, the deadline, which is over, shuts it down.
            raise self._over(request) from None
        except BaseException as error:
            over = deadline.over
            deadline.end()  # after Ctrl-C, the thread would wait for the answer
            if over and isinstance(error, httpx.TransportError):
                raise self._over(request) from error
            raise
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Watched(response.stream, deadline, self._over(request))
        return response

    def _over(self, request: httpx.Request) -> httpx.ReadTimeout:
        return httpx.ReadTimeout(f"no complete answer within {self.seconds:g} s", request=request)


class _Watched(httpx.SyncByteStream):
    """An answer's body; `error` is raised instead of one that was cut off."""

    def __init__(self, stream: httpx.SyncByteStream, deadline: Deadline, error: httpx.ReadTimeout) -> None:
        self._stream, self._deadline, self._error = stream, deadline, error

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except httpx.TransportError as error:
            raise (self._error if self._deadline.over else error) from None
        if self._deadline.over:  # without a length, a body that was cut off looks complete
            raise self._error

    def close(self) -> None:
        self._deadline.cancel()
        self._stream.close()
