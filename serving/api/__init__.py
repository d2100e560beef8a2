"""Routes, one group per file: each parses the request, calls a handler and formats the response."""
