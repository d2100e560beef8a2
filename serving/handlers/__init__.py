"""The service's operations, independent of HTTP."""
