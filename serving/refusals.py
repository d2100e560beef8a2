"""Answers that the listener sends without handling a request."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status with its problem, which has no text of the request."""

    status: bytes
    slug: bytes
    detail: bytes
    again: bool = True  # whether the same request may succeed later

    def got(self, what: str) -> Refusal:
        """The same, with what came instead; not text of the request itself."""
        plain = what.encode("ascii", "ignore").translate(None, b'"\\\r\n')
        return replace(self, detail=self.detail.removesuffix(b".") + b", got: " + plain + b".")

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
                b"\r\ncontent-type: application/problem+json\r\n",
                b"retry-after: 1\r\n" if self.again else b"",
                b"connection: close\r\n" if close else b"",
                b"content-length: %d\r\n\r\n" % len(body),
                body,
            )
        )


TOO_LARGE = Refusal(
    b"431 Request Header Fields Too Large",
    b"over-limit",
    b"the request's header or trailer section is too large: expected at most header_bytes (32 KiB by default).",
    again=False,
)
MALFORMED = Refusal(
    b"400 Bad Request",
    b"malformed",
    b"the request is not HTTP/1.1: expected a known method, a URL in ASCII, lines that end in CRLF, and one "
    b"Content-Length or a chunked body; without TLS.",
    again=False,
)
SLOW = Refusal(b"408 Request Timeout", b"body-timeout", b"the request did not arrive in time.")
BUSY = Refusal(
    b"503 Service Unavailable", b"overloaded", b"the service is overloaded. try again in a second."
)
FULL = Refusal(b"503 Service Unavailable", b"overloaded", b"too many connections. try again in a second.")
BUSY_ANSWERS = {keep_alive: BUSY.render(close=not keep_alive) for keep_alive in (False, True)}
