"""Routes, one group per file: they read, call a handler, and answer."""
