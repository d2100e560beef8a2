"""What the service does, independent of HTTP."""
