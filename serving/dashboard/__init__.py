"""The dashboard: server-rendered pages without scripts; they work offline, by keyboard, and in light and dark."""
