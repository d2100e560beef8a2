"""Answers that the listener sends without handling a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status with its problem, which says nothing of the request."""

    status: bytes
    slug: bytes
    detail: bytes

    def render(self, close: bool) -> bytes:
        body = b'{"type":"urn:cotenant:problem:%s","title":"Request refused","status":%s,"detail":"%s"}' % (
            self.slug,
            self.status[:3],
            self.detail,
        )
        return b"".join(
            (
                b"HTTP/1.1 ",
                self.status,
                b"\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n",
                b"connection: close\r\n" if close else b"",
                b"content-length: %d\r\n\r\n" % len(body),
                body,
            )
        )


TOO_LARGE = Refusal(
    b"431 Request Header Fields Too Large",
    b"over-limit",
    b"the request's header or trailer section is too large.",
)
MALFORMED = Refusal(b"400 Bad Request", b"malformed", b"the request is not HTTP/1.1.")
SLOW = Refusal(b"408 Request Timeout", b"body-timeout", b"the request did not arrive in time.")
BUSY = Refusal(
    b"503 Service Unavailable", b"overloaded", b"the service is overloaded. try again in a second."
)
FULL = Refusal(b"503 Service Unavailable", b"overloaded", b"too many connections. try again in a second.")
BUSY_ANSWERS = {keep_alive: BUSY.render(close=not keep_alive) for keep_alive in (False, True)}
